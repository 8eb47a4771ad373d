"""A running server, as the subcommands that need one see it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx

from deployments.cli.arguments import Failure, positive

API_KEY_VARIABLE = "TURNSTILE_API_KEY"
_MAX_RETRIES = 60
_CONNECT_S = 10.0


class ServerFailure(Failure):
    """The server's answer was an error, with this HTTP `status`, or there was none (0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and as whom."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", default="http://127.0.0.1:8000", help="its address (default %(default)s)")
    group.add_argument(
        "--timeout", type=positive, default=600, metavar="S", help="longest silence, in seconds (default 600)"
    )
    group.description = f"An API key, where the server wants one, is read from the variable {API_KEY_VARIABLE}."


def authorization() -> dict[str, str]:
    """The header with the API key, where the environment has one."""
    key = os.environ.get(API_KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


class Server:
    """Requests to one server. Thread-safe. Its methods raise `ServerFailure`."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url = url
        self._client = httpx.Client(
            base_url=url,
            headers=authorization(),
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        )

    def compile(self, specification: dict[str, Any], on_unsupported: str | None = None) -> dict[str, Any]:
        """The status of the grammar, compiled; waits while the server is full."""
        body = {"specification": specification, "on_unsupported": on_unsupported}
        for _ in range(_MAX_RETRIES):
            with self._failures():
                response = self._client.post("/v1/grammars", json=body)
            if response.status_code != 429:
                break
            time.sleep(float(response.headers.get("Retry-After", 1)))
        return dict(_checked(response).json())

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer."""
        with self._failures(), self._client.stream("POST", path, json={**body, "stream": True}) as response:
            if response.is_error:
                response.read()
            for line in _checked(response).iter_lines():
                if (chunk := chunk_in(line)) is not None:
                    if "error" in chunk:
                        raise ServerFailure(chunk["error"]["message"])
                    yield chunk

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ServerFailure(f"no answer from {self._url}: {reason}. Is it running? (`turnstile serve`)") from error


def chunk_in(line: str) -> dict[str, Any] | None:
    """The chunk that a line of a stream holds."""
    data = line.removeprefix("data: ")
    return None if data in (line, "[DONE]") else dict(json.loads(data))


def _checked(response: httpx.Response) -> httpx.Response:
    if not response.is_error:
        return response
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{response.url} answered {response.text[:200]!r}"
    if response.status_code == 401:
        rejected = f"the server does not accept the API key in {API_KEY_VARIABLE}"
        message = rejected if authorization() else f"the server needs an API key: set {API_KEY_VARIABLE} to yours"
    raise ServerFailure(f"{message} (status {response.status_code})", response.status_code)
