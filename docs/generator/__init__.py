"""Generator of the reference pages from the code: `python -m docs.generator`."""
