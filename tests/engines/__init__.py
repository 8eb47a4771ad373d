"""Our logits processors in real llama-cpp-python and mlx-lm, in an environment of their own: `make test-engines`."""
