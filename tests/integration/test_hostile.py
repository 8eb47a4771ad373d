"""A few of the hostile bodies that `make soak` sends, beside a steady stream."""

from __future__ import annotations

from tests.integration.hostile import crafted, field_of, generated
from tests.integration.server import Server

MOST_GAP_S = 5.0
"""`make soak` prints what it is."""


def test_hostile_bodies_do_not_hold_up_a_stream(server: Server) -> None:
    attacks = [*crafted()[::12], *generated(8, seed=2)]
    with field_of(server.url, server.replicas("Router")) as field:
        findings = [finding for attack in attacks for finding in field.attack([attack])]
    assert not [finding for finding in findings if finding.fault is not None]
    # A gap in which the router has computed nothing is the machine's.
    assert max(min(finding.gap_s, finding.cpu_s) for finding in findings) < MOST_GAP_S
