"""What connections that never finish a request cost others. (`make soak` prints exact figures, and more attacks.)"""

from __future__ import annotations

import pytest

from tests.integration.connections import Attack, attacked
from tests.integration.server import Server

pytestmark = pytest.mark.anyio

GENEROUS_S = 5.0
LONG_ENOUGH_TO_BE_CUT_S = 13.0


async def test_half_open_connections_beside_a_stream(server: Server) -> None:
    outcome = await attacked(Attack(8000, 8), server.port, server.health_port, seconds=LONG_ENOUGH_TO_BE_CUT_S)
    assert outcome.failures == []
    assert outcome.opened > 8000  # they were cut, and renewed
    assert max(outcome.slowest_s.values()) < GENEROUS_S
    assert outcome.gap_s < GENEROUS_S
