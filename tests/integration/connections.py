"""Connections that never finish a request, beside a steady stream and a probe of `/health` from another address.

    python -m tests.integration.connections [--seconds 25] [--port 8000 --health-port 8002]

Without `--port` a server is started. Prints a table; exit status 1 where a probe waited for more than two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import statistics
import sys
import time

import httpx

from benchmarks.load import Measurements, Streams, connect
from tests.integration.half_open import HalfOpen
from tests.integration.server import Server

PROBE_LIMIT_S = 2.0


@dataclasses.dataclass(frozen=True)
class Attack:
    """`kind`: what is sent of each request (`half_open.KINDS`)."""

    connections: int
    addresses: int
    kind: str = "header"

    def __str__(self) -> str:
        return f"{self.connections:,} half a {self.kind}, {self.addresses} addresses"


ATTACKS = [Attack(8000, 8), Attack(8000, 4), Attack(8000, 1), Attack(1000, 1, "body"), Attack(12_000, 12)]


@dataclasses.dataclass
class Outcome:
    """Seconds that `/health` took on each port, what else than 200 it said, and the gaps of the stream."""

    probes: dict[int, list[float]]
    failures: list[str]
    opened: int = 0
    gap_s: float = 0.0

    @property
    def slowest_s(self) -> dict[int, float]:
        return {port: max(seconds) for port, seconds in self.probes.items()}


async def attacked(attack: Attack, port: int, *others: int, seconds: float) -> Outcome:
    """Probe `port` and `others` while `port` is attacked."""
    outcome = Outcome({each: [] for each in (port, *others)}, [])
    measured = Measurements()
    async with connect(f"http://127.0.0.1:{port}") as http:
        streams = Streams(http, 1)
        await streams.start()
        with streams.recording(measured):
            async with HalfOpen(port, attack.connections, addresses=attack.addresses, kind=attack.kind) as held:
                await asyncio.gather(*(_probe(each, outcome, time.monotonic() + seconds) for each in outcome.probes))
            outcome.opened = held.opened
        await streams.close()
    outcome.gap_s = max(measured.gaps)
    outcome.failures += ["a stream broke"] * measured.broken_streams
    return outcome


async def _probe(port: int, outcome: Outcome, until: float) -> None:
    while time.monotonic() < until:
        started = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:  # a connection of its own
            try:
                response = await http.get(f"http://127.0.0.1:{port}/health")
                outcome.failures += [response.text] * (response.status_code != 200)
            except httpx.TransportError as error:
                outcome.failures.append(repr(error))
        outcome.probes[port].append(time.monotonic() - started)
        await asyncio.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25, help="of each attack (default %(default)s)")
    parser.add_argument("--port", type=int, help="of a running server (default: start one)")
    parser.add_argument("--health-port", type=int, help="the one it has for probes")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        port, health = arguments.port, arguments.health_port
        if port is None:
            server = stack.enter_context(Server({"store": "memory://"}))
            port, health = server.port, server.health_port
        return _table(port, health, arguments.seconds)


def _table(port: int, health: int, seconds: float) -> int:
    late = False
    print(f"{'connections':<40}{'opened':>9}{'/health':>18}{'on its port':>18}{'largest gap':>14}", flush=True)
    for attack in ATTACKS:
        outcome = asyncio.run(attacked(attack, port, health, seconds=seconds))
        probes = (
            f"{statistics.median(times) * 1000:,.0f} / {max(times) * 1000:,.0f} ms" for times in outcome.probes.values()
        )
        columns = "".join(f"{each:>18}" for each in probes)
        print(
            f"{attack!s:<40}{outcome.opened:>9,}{columns}{outcome.gap_s * 1000:>11,.0f} ms",
            *outcome.failures,
            flush=True,
        )
        late |= bool(outcome.failures) or outcome.slowest_s[health] > PROBE_LIMIT_S
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
