"""`/tokenize` and `/detokenize`, in vLLM's shape: what the served model's tokenizer makes of a prompt."""
