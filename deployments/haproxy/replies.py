"""What HAProxy answers itself, with the body that clients of OpenAI's API expect.

It has no fastapi to import: HAProxy is started, and started again, through this package.
"""

from __future__ import annotations

import dataclasses
import json

from deployments.http.error_types import error_type


@dataclasses.dataclass(frozen=True)
class Reply:
    """A status with an error; `retry_after_s`: when to come back."""

    status: int
    message: str
    code: str | None = None
    retry_after_s: int | None = None

    @property
    def body(self) -> str:
        """As `deployments.http.errors.ErrorBody`."""
        detail = {"message": self.message, "type": error_type(self.status), "param": None, "code": self.code}
        return json.dumps({"error": detail})

    @property
    def arguments(self) -> str:
        """What `http-error` and `http-request return` take."""
        quoted = self.body.replace("'", "’")
        retry = "" if self.retry_after_s is None else f" hdr Retry-After {self.retry_after_s}"
        return f"status {self.status} content-type application/json string '{quoted}'{retry}"


NO_ROUTER = Reply(503, "no router can be reached", "router_lost", retry_after_s=1)
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
"""Where no rule says what to answer."""

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
"""For what Serve, and the server in its replicas, answer in plain text, which the application never does: its proxy
knows no application, a trailer says what only a header may, and so on."""
NO_SUCH_PATH = Reply(404, "no such path")
NOT_READY = dict(OF_SERVE)[404]
WRONG_HOST = Reply(
    403,
    "this server is for its own machine: call it localhost, or name what it is called in TURNSTILE_HOSTS",
    "host_not_allowed",
)
STOPPING = Reply(503, "the server is shutting down", "shutting_down", retry_after_s=5)


def crowded(connections: int) -> Reply:
    """To an address that has more than `connections` open."""
    message = f"more than {connections} connections are open from this address; a proxy of many clients can be trusted"
    return Reply(429, message, "too_many_connections", retry_after_s=1)
