"""The `type` of an error body, as clients of OpenAI's API expect it.

It imports nothing: what is started in HAProxy's place answers with it, too.
"""


def error_type(status: int) -> str:
    """That of all errors with this HTTP status."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_type(status: int) -> str:
    """The same as clients of Anthropic's API expect it."""
    return _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
