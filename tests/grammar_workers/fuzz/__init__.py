"""A differential fuzzer of the grammar engine: random cases against judges that others wrote.

    python -m tests.grammar_workers.fuzz --seconds 30 --seed 1 --processes 2

A case is a specification, options and a vocabulary (`cases`). What the engine accepts must be valid, what is valid and
spelled as the options say must be accepted, and every state must have a way to an end (`check`).
"""
