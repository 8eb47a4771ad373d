"""A fiftieth of the generated requests that `make soak` sends."""

from __future__ import annotations

from tests.integration.fuzz import fuzz
from tests.integration.server import Server


def test_generated_requests_find_no_fault_of_the_server(server: Server) -> None:
    counts = fuzz(server.url, 40)
    assert counts.total() >= 40 and {"documented 200", "documented 400", "schemas 200"} <= counts.keys()
