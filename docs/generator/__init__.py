"""The reference in `docs/reference`, made from the code: `python -m docs.generator` writes it."""
