"""Counter of HTTP requests by outcome: success, error of the client, error of the server, or canceled."""

from __future__ import annotations

from ray.util.metrics import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.errors import TOLD, ApiError, tell
from grammar_workers.service.metrics import begin_at_zero

# Error codes whose counters exist, with the value zero, from the start.
SERVER_CODES = ("internal_error", "not_finite", "grammar_timeout", "out_of_memory", "unavailable", "store_key_mismatch")
# Path of health probes, which is not counted: probes are frequent, and fail while a server starts.
UNCOUNTED = "/health"


class Outcomes:
    """ASGI middleware that counts each HTTP request once in the metric `turnstile_requests_total`.

    A request is counted when its response has been sent or its client has disconnected. Requests to `/health` are not
    counted.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._counter = Counter(
            "turnstile_requests_total",
            "HTTP requests by `outcome`: `ok`, `client_error` (4xx), `server_error` (5xx), `cancelled` by the client. "
            "`code` is the code of the error. Without a code, it is the HTTP status.",
            ("outcome", "code"),
        )
        begin_at_zero(self._counter, *({"outcome": "server_error", "code": code} for code in SERVER_CODES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, then count the request."""
        if scope["type"] != "http" or scope["path"] == UNCOUNTED:
            await self._app(scope, receive, send)
            return
        told: list[ApiError] = []
        status, over = 0, False

        async def noting(message: Message) -> None:
            nonlocal status, over
            status = message.get("status", status)
            await send(message)
            over = message["type"] == "http.response.body" and not message.get("more_body")

        token = TOLD.set(told)
        try:
            await self._app(scope, receive, noting)
        except Exception:
            if not status:  # Starlette sends the response
                status, over = 500, True
                tell(ApiError.internal())
            raise
        finally:
            TOLD.reset(token)
            if told:
                status = told[-1].status
            code = (told[-1].detail.code if told else None) or str(status)
            outcome = "ok" if status < 400 else "client_error" if status < 500 else "server_error"
            labels = {"outcome": outcome, "code": "" if outcome == "ok" else code}
            self._counter.inc(tags=labels if over else {"outcome": "cancelled", "code": ""})
