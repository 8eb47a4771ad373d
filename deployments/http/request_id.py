"""The id of a request: its `x-request-id`, which Serve makes where the client sends none, and returns."""

from __future__ import annotations

import re

from fastapi import Request
from starlette.datastructures import Headers

HEADER = "x-request-id"
ANTHROPIC_HEADER = "request-id"
"""Where clients of Anthropic's API look for it in an answer."""
_ALLOWED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def sent_request_id(request: Request) -> str | None:
    """None where none was sent, or one that is not as it may be."""
    given = request.headers.get(HEADER)
    return None if given is None or _ALLOWED.fullmatch(given) is None else given


def has_allowed_id(headers: Headers) -> bool:
    """Return whether a request sends at most one id, and a valid one: responses and logs repeat it."""
    given = headers.getlist(HEADER)
    return not given or (len(given) == 1 and _ALLOWED.fullmatch(given[0]) is not None)
