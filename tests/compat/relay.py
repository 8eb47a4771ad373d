"""A relay between client packages and the server, which keeps each distinct request of a package.

The first two segments of a path name the package and the call that is tested: `/openai/text/v1/chat/completions`.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import httpx

MOST_BYTES = 12_000
"""Of a body that is kept; a longer one only fills the context."""

_ID = re.compile(r"\b((?:call|chatcmpl|cmpl|fc|ctc|msg|resp|rs|toolu)[_-])([0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")


def without_ids(text: str) -> str:
    """Replace generated identifiers by numbers in the order of their first appearance."""
    seen: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        prefix = match[1] if match.re is _ID else ""
        return f"{prefix}{seen.setdefault(match[0], len(seen) + 1)}"

    return _UUID.sub(number, _ID.sub(number, text))


class Relay:
    """An HTTP server on a free port that passes requests on to `target`. Entering it starts it."""

    def __init__(self, target: str) -> None:
        self.recorded: dict[str, dict[str, dict[str, Any]]] = {}
        """By package, then by what identifies a request."""
        self._client = httpx.Client(base_url=target, timeout=300, trust_env=False)
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, kind, content = relay.pass_on(self.command, self.path, body)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def pass_on(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Send a request to the server and keep it. Returns status, content type and body of the response."""
        _, package, call, rest = path.split("/", 3)
        response = self._client.request(
            method, f"/{rest}", content=body, headers={"content-type": "application/json", "x-api-key": "none"}
        )
        if method == "POST" and len(body) <= MOST_BYTES and response.status_code < 500:
            request: dict[str, Any] = {
                "path": f"/{rest.partition('?')[0]}",
                "body": json.loads(without_ids(body.decode())),
            }
            key = json.dumps(request, sort_keys=True)
            error = {} if response.status_code == 200 else {"error": response.json()["error"]["type"]}
            kept = {"call": call, **request, "status": response.status_code, **error}
            self.recorded.setdefault(package, {}).setdefault(key, kept)
        return response.status_code, response.headers["content-type"], response.content

    def __enter__(self) -> Relay:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()
