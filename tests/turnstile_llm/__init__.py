"""Tests of the Python API `turnstile_llm`."""
