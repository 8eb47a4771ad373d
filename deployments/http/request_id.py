"""Id of a request: the header `x-request-id`.

If the client sends no id, Ray Serve adds one. The response also has the id in this header.
"""

from __future__ import annotations

import re

from fastapi import Request
from starlette.datastructures import Headers

HEADER = "x-request-id"
# Header of a response in which Anthropic's clients expect the id.
ANTHROPIC_HEADER = "request-id"
_ALLOWED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def sent_request_id(request: Request) -> str | None:
    """Return the id of the request, or None if the header `x-request-id` is missing or invalid."""
    given = request.headers.get(HEADER)
    return None if given is None or _ALLOWED.fullmatch(given) is None else given


def has_allowed_id(headers: Headers) -> bool:
    """Return whether the headers of a request have no id, or exactly one valid id.

    A valid id has 1 to 128 letters, digits and characters of `._:/+=-`. Other ids are rejected because responses and
    logs repeat the id.
    """
    given = headers.getlist(HEADER)
    return not given or (len(given) == 1 and _ALLOWED.fullmatch(given[0]) is not None)
