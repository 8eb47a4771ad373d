"""Request bodies and responses of OpenAI's API.

- `protocol` has the bodies of both completion endpoints (`/v1/chat/completions` and `/v1/completions`).
- `sampling`, `constraints`, `structural_tags` and `chat_messages` have parts of these bodies.
- `completions` and `logprobs` format the responses.
- `chat_format` adapts conversations to the served model.
- `responses` has the body and the response of `POST /v1/responses`.
- `translated` has the base class of bodies of other APIs that are translated into chat completions.
"""
