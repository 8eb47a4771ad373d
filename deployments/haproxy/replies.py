"""Error responses that HAProxy sends itself, without a router, in the JSON format of OpenAI's API.

This module must not import FastAPI: the import is slow, and each start of HAProxy imports this module.
"""

from __future__ import annotations

import dataclasses
import json

from deployments.http.error_types import error_type


@dataclasses.dataclass(frozen=True)
class Reply:
    """Error response that HAProxy sends itself, with a JSON body in OpenAI's format.

    Attributes:
        status: HTTP status.
        message: Text of the error.
        code: Machine-readable code of the error. None: the error has no code.
        retry_after_s: Seconds after which the client may try again. None: the response has no `Retry-After` header.
    """

    status: int
    message: str
    code: str | None = None
    retry_after_s: int | None = None

    @property
    def body(self) -> str:
        """JSON text of the response body: `{"error": {"message", "type", "param", "code"}}`."""
        detail = {"message": self.message, "type": error_type(self.status), "param": None, "code": self.code}
        return json.dumps({"error": detail})

    @property
    def arguments(self) -> str:
        """Arguments of HAProxy's directives `http-error` and `http-request return` for this response, in one line."""
        quoted = self.body.replace("'", "’")
        retry = "" if self.retry_after_s is None else f" hdr Retry-After {self.retry_after_s}"
        return f"status {self.status} content-type application/json string '{quoted}'{retry}"


NO_ROUTER = Reply(503, "no router can be reached", "router_lost", retry_after_s=1)
# Responses of HAProxy to errors that no rule answers.
OWN = (
    Reply(400, "the request is not valid HTTP, or it ended early"),
    Reply(403, "this is not allowed"),
    Reply(408, "the request did not arrive in time"),
    Reply(413, "the body is too large"),
    Reply(429, "too many requests", retry_after_s=1),
    Reply(500, "internal error"),
    Reply(502, "the connection to the router broke: repeat the request", "router_lost"),
    NO_ROUTER,
    Reply(504, "the router did not answer in time", "router_lost"),
)

# Status -> response that replaces a plain-text response of Serve, or of the HTTP server in a replica.
#
# The application never answers in plain text. Serve does, for example if its proxy has no application or if a trailer
# has a field that only a header may have.
OF_SERVE = (
    (400, OWN[0]),
    (403, OWN[1]),
    (426, Reply(426, "this server speaks HTTP alone")),
    (404, Reply(503, "no application is ready: it is starting, or deleted; try again", "not_ready", retry_after_s=5)),
    (408, Reply(408, "the request took longer than it may")),
    (429, Reply(429, "the server is at its capacity; try again shortly", "server_full", retry_after_s=1)),
    (500, Reply(500, "internal error", "internal_error")),
    (503, Reply(503, "no router can take the request", "router_lost", retry_after_s=1)),
)
NO_SUCH_PATH = Reply(404, "no such path")
NOT_READY = dict(OF_SERVE)[404]
WRONG_HOST = Reply(
    403,
    "this server is for its own machine: call it localhost, or name what it is called in TURNSTILE_HOSTS",
    "host_not_allowed",
)
STOPPING = Reply(503, "the server is shutting down", "shutting_down", retry_after_s=5)


def crowded(connections: int) -> Reply:
    """Return the error response (429) for a client address that has too many open connections.

    Args:
        connections: Maximum number of connections per address, for the message.
    """
    message = f"more than {connections} connections are open from this address; a proxy of many clients can be trusted"
    return Reply(429, message, "too_many_connections", retry_after_s=1)
