"""What must be true of every answer to a body, however hostile."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

MAX_ERROR_BYTES = 4096
STATUSES = {200, 202, 400, 404, 408, 413, 415, 429}
_PART = re.compile(r"""\[(?P<index>\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|\.?(?P<name>[\w$-]+(?:\.\.\.)?)""")
_ELSEWHERE = {"body", "x-request-id", "x-turnstile-tenant", "content-encoding", "key"}


def fault(response: httpx.Response, body: Any) -> str | None:
    """What is wrong with the answer to a body, whose value is `body` (None: it has none); None when nothing is."""
    if response.status_code not in STATUSES:
        return f"status {response.status_code}"
    if response.status_code in (200, 202):
        return None
    if len(response.content) > MAX_ERROR_BYTES:
        return f"an error of {len(response.content)} bytes"
    try:
        answer = json.loads(response.content)
        detail = answer["error"]
    except (ValueError, KeyError, TypeError):
        return "no error body"
    if answer.keys() != {"error"} or not {"message", "type", "param", "code"} <= detail.keys():
        return "another error body"
    if detail["type"] not in ("invalid_request_error", "rate_limit_error"):
        return f"type {detail['type']}"
    if detail["param"] is not None and not leads_somewhere(detail["param"], body):
        return "`param` leads nowhere"
    return None


def leads_somewhere(param: str, body: Any) -> bool:
    """Whether `param` is the place of something in the body, or of a field that is missing in something."""
    if param in _ELSEWHERE:
        return True
    at = 0
    value = body
    while at < len(param):
        if isinstance(value, str):
            return True  # the place goes on in a JSON text
        match = _PART.match(param, at)
        if match is None:
            return param.endswith("...")  # cut in the middle of a name
        at = match.end()
        if (index := match["index"]) is not None:
            if not isinstance(value, list):
                return False
            if int(index) >= len(value):
                return at == len(param)  # an item that is missing
            value = value[int(index)]
            continue
        name = match["name"] if match["quoted"] is None else json.loads(match["quoted"])
        if not isinstance(value, dict):
            return False
        if name in value:
            value = value[name]
        elif name.endswith("...") and any(key.startswith(name[:-3]) for key in value):
            value = next(inner for key, inner in value.items() if key.startswith(name[:-3]))
        else:
            return at == len(param)
    return True
