"""A stream that never ends, read in a process of its own: what it notices of everything else."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import time
import urllib.parse
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType

BODY = {
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 700,
    "ignore_eos": True,
    "stream": True,
}
LIKE_ALONE_S = 0.02
"""Gaps up to here are not told."""


@dataclass(frozen=True)
class Gap:
    """Nothing came for so long before a moment of the monotonic clock."""

    until: float
    seconds: float


class SteadyStream:
    """Reads one stream after the other from the server at `url` until it is left.

    A gap lies between one chunk and the next, or between a request and its first chunk.
    """

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._gaps, to_us = context.Pipe(duplex=False)
        self._process = context.Process(target=_read, args=(url, to_us), daemon=True)

    def __enter__(self) -> SteadyStream:
        self._process.start()
        assert self._gaps.poll(60), "the stream does not begin"
        self._gaps.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def gaps(self) -> list[Gap]:
        """Those since the last call. Raises AssertionError where a stream has failed."""
        found = []
        while self._gaps.poll():
            gap = self._gaps.recv()
            assert isinstance(gap, Gap), gap
            found.append(gap)
        return found


def _read(url: str, gaps: Connection) -> None:
    try:
        while True:
            _read_one(url, gaps)
    except Exception as error:
        gaps.send(f"the steady stream failed: {error!r}")


def _read_one(url: str, gaps: Connection) -> None:
    address = urllib.parse.urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    last = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: "):
            assert b'"error"' not in line, line
            now = time.monotonic()
            if now - last > LIKE_ALONE_S:
                gaps.send(Gap(now, now - last))
            last = now
    connection.close()
