"""Field `type` of error bodies in OpenAI's and in Anthropic's API, derived from the HTTP status.

This module has no imports, because it must load fast in the program that Ray Serve starts in place of HAProxy.
"""


def error_type(status: int) -> str:
    """Return the `type` of an error body in OpenAI's API, such as `rate_limit_error`.

    Args:
        status: HTTP status, 400 or more.
    """
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
    """Return the `type` of an error body in Anthropic's API, such as `not_found_error`.

    Args:
        status: HTTP status, 400 or more.
    """
    return _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
