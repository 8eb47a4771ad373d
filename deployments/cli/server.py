"""HTTP client of a running Turnstile server, for the subcommands of `turnstile` that send requests."""

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
    """The server has responded with an error, or has not responded. The message has the reason.

    Attributes:
        status: HTTP status of the response. 0: there was no response, or a stream contained the error.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `--url` (address of the server) and `--timeout` (seconds) to a parser, in place."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default %(default)s)")
    group.add_argument(
        "--timeout",
        type=positive,
        default=600,
        metavar="S",
        help="maximum number of seconds without data from the server (default 600)",
    )
    group.description = f"If the server needs an API key, set the environment variable {API_KEY_VARIABLE}."


def authorization() -> dict[str, str]:
    """Return the HTTP header with the API key from the environment variable TURNSTILE_API_KEY.

    Returns:
        `{"Authorization": "Bearer KEY"}`. If the variable is empty or not set: an empty dictionary.
    """
    key = os.environ.get(API_KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


class Server:
    """HTTP client of one Turnstile server. Several threads may use one object.

    Every method raises `ServerFailure` if the server does not respond or responds with an error. Requests have the API
    key of the environment variable TURNSTILE_API_KEY, if it is set.

    Args:
        url: Base URL of the server, such as `http://127.0.0.1:8000`.
        timeout_s: Maximum number of seconds for which the server may send no data.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url = url
        self._client = httpx.Client(
            base_url=url,
            headers=authorization(),
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        )

    def compile(self, specification: dict[str, Any], on_unsupported: str | None = None) -> dict[str, Any]:
        """Compile a constraint on the server, and wait until the compiled grammar is ready.

        While the server is full (status 429), the request is repeated after the delay in the header `Retry-After`. At
        most 60 requests are sent. `ServerFailure` is raised if the server rejects the constraint or cannot be reached,
        or if it is still full at the last request.

        Args:
            specification: The constraint as plain data with `type`, such as `{"type": "regex", "pattern": ...}`.
            on_unsupported: Treatment of schema keywords that cannot be enforced: `reject` or `report`. None: the
                server's setting applies.

        Returns:
            The JSON object of the response of `POST /v1/grammars`: `key`, `status`, `automaton_states` and more.
        """
        body = {"specification": specification, "on_unsupported": on_unsupported}
        for left in reversed(range(_MAX_RETRIES)):
            with self._failures():
                response = self._client.post("/v1/grammars", json=body)
            if response.status_code != 429 or not left:
                break
            time.sleep(float(response.headers.get("Retry-After", 1)))
        return dict(_checked(response).json())

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a POST request and yield the JSON objects of its streaming response as they arrive.

        Args:
            path: Path of the endpoint, such as `/v1/chat/completions`.
            body: Request body as JSON data; not changed. The request also has `stream: true`.

        Yields:
            The data of each server-sent event, until the stream ends.

        Raises:
            ServerFailure: The server does not respond, responds with an error status, or sends an error in the stream.
        """
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
    """Return the JSON object in one line of a stream of server-sent events.

    ValueError is raised if the data of the line is not valid JSON.

    Args:
        line: Line without line end, such as `data: {"choices": []}`.

    Returns:
        The object. None for a line without data (such as an empty line), and for `data: [DONE]`.
    """
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
