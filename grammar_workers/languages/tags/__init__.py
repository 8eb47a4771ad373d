"""Structural tags: formats become one automaton over characters, tokens and calls of JSON values, and that is lowered."""
