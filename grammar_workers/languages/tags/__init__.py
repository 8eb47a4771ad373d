"""Structural tags: formats become one automaton over characters, tokens and called values, and that is lowered."""
