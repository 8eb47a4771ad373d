"""Faults under load: `python -m tests.chaos` on several Ray nodes; the integration tests take some of them."""
