"""OpenAI's bodies and answers.

body --protocol--> chat and text completions, with `sampling`, `constraints`, `structural_tags`, `tool_bodies`
tokens --completions, logprobs--> answer;  responses/: the same for `POST /v1/responses`
"""
