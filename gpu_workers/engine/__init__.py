"""Continuous batching: which sequences run in the next pass, and what becomes of their tokens.

replica --> engine: take messages, follow grammars, plan (`scheduler`), forward, sample, append (`sequence`)
overlap: what is done while the device computes
"""
