"""Endpoint `POST /v1/responses` of OpenAI's API for conversations. Requests are translated to chat completions."""
