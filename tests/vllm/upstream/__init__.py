"""vLLM's own tests of structured outputs, with our backend in the place of xgrammar and guidance."""
