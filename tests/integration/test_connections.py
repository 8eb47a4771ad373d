"""What connections that never finish a request cost others. (`make soak` prints exact figures, and more attacks.)"""

from __future__ import annotations

import statistics

import pytest

from tests.integration.connections import Attack, attacked
from tests.integration.server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.long]

GENEROUS_S = 5.0


@pytest.mark.parametrize(
    ("attack", "beyond_its_deadline_s", "renewed"),
    [(Attack(8000, 8), 13.0, True), (Attack(1000, 1, "body"), 33.0, False)],
    ids=str,
)
async def test_half_open_connections_beside_a_stream(
    server: Server, attack: Attack, beyond_its_deadline_s: float, renewed: bool
) -> None:
    outcome = await attacked(attack, server.port, server.health_port, seconds=beyond_its_deadline_s)
    assert outcome.failures == []
    # One that has its answer and is silent may stay for a minute; the others were cut.
    assert (outcome.opened > attack.connections) is renewed
    # A machine that stalls holds up a few of the probes, an attack nearly all of them, and the stream for its time.
    assert max(map(statistics.median, outcome.probes.values())) < GENEROUS_S
    assert outcome.gap_s < beyond_its_deadline_s - GENEROUS_S
