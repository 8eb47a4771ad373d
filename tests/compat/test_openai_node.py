"""openai for Node, over both of its APIs."""

from __future__ import annotations

import pytest

from tests.compat import node_packages
from tests.compat.table import CALLS

PACKAGE = "openai (Node)"
VERSION = node_packages.version("openai")
APIS = ["chat", "responses"]


@pytest.mark.parametrize("call", CALLS)
def test_calls(url: str, api: str, call: str) -> None:
    node_packages.run("openai_node.mjs", url, api, call)
