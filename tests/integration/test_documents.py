"""What README and documents tell people to send to a server: it is answered."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.documents import blocks, commands, printed
from tests.integration.server import Server

ADDRESS = "http://127.0.0.1:8000"
WITH_PYTHON = ("README.md", "docs/tutorial.md", "docs/tools.md")
WITH_CURL = ("README.md", "docs/tutorial.md")


@pytest.mark.parametrize("document", WITH_PYTHON)
def test_python_blocks_run(document: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    namespace: dict[str, Any] = {}
    for block in blocks(document, "python"):
        addressed = replace(block, text=block.text.replace(ADDRESS, server.url))
        assert ("print(" in block.text) == bool(printed(addressed, document, namespace))


@pytest.mark.anyio
@pytest.mark.parametrize("document", WITH_CURL)
async def test_curl_commands_are_answered(document: str, server: Server, http: httpx.AsyncClient) -> None:
    key, sent = "KEY", 0
    for block in blocks(document, "bash", "sh"):
        for words in commands(block):
            if words[0] != "curl" or "-N" in words:  # a stream to be broken
                continue
            options = dict(itertools.pairwise(words))
            (url,) = (word for word in words if word.startswith(ADDRESS))
            body = options.get("-d", "").replace("KEY", key) or None
            response = await http.request(
                "GET" if body is None else "POST",
                url.replace(ADDRESS, server.url).replace("KEY", key),
                content=body,
                headers=dict([options["-H"].split(": ")]) if "-H" in options else None,
            )
            assert response.status_code == 200, f"{document}, line {block.line}: {response.text}"
            key = response.json().get("key", key)
            sent += 1
    assert sent
