"""The reference in `docs/reference`, made from the code: `python -m deployments.reference` writes it."""
