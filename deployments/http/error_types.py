"""The `type` of an error body, as clients of OpenAI's API expect it.

It imports nothing: what is started in HAProxy's place answers with it, too.
"""


def error_type(status: int) -> str:
    """That of all errors with this HTTP status."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
