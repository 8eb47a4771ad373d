"""Generated requests over the whole OpenAPI document: a few in `make test`, many in `make test-long`."""

from __future__ import annotations

import pytest

from tests.integration.fuzz import fuzz
from tests.integration.server import Server


@pytest.mark.parametrize("requests", [40, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_generated_requests_find_no_fault_of_the_server(server: Server, requests: int) -> None:
    counts = fuzz(server.url, requests)
    assert counts.total() >= requests and {"documented 200", "documented 400", "schemas 200"} <= counts.keys()
