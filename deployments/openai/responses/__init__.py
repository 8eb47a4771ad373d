"""`POST /v1/responses`: OpenAI's newer shape of a conversation, over the same generation as chat completions."""
