"""Vercel's AI SDK with three providers, which check responses with schemas of their own."""

from __future__ import annotations

import pytest

from tests.compat import node_packages
from tests.compat.table import CALLS

PACKAGE = "ai (AI SDK)"
VERSION = node_packages.version("ai")
APIS = ["chat", "responses", "chat (openai-compatible)", "messages"]


@pytest.mark.parametrize("call", CALLS)
def test_calls(url: str, api: str, call: str) -> None:
    node_packages.run("ai_sdk.mjs", url, api, call)
