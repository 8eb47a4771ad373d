"""The metrics that both tiers publish, defined once. This package does not know Ray: it is handed the classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

Stats = Mapping[str, Mapping[str, int | str]]
"""What `GrammarStore.stats` returns, maybe with further tiers."""


STORE_TROUBLES = (("automata", "key_mismatch"), ("redis", "unauthorized"))
"""Tier and event of the store events that alerts watch."""


def begin_at_zero(counter: Any, *labels: Mapping[str, str]) -> None:
    """Export a Ray counter from 0. Without it the counter first appears as 1, and PromQL's `increase` misses the event.

    `Counter.inc` of Ray rejects 0, the method below it does not.
    """
    for each in labels:
        counter._record(0, dict(each))


class TierMetrics:
    """Publishes what `stats` tells and how many grammars were compiled, with Ray's classes `Counter` and `Gauge` or
    others like them. `place`: the kind of replica.
    """

    def __init__(
        self, stats: Callable[[], Stats], place: str, counter: Callable[..., Any], gauge: Callable[..., Any]
    ) -> None:
        self._stats = stats
        self._place = place
        self._published: Counter[tuple[str, str]] = Counter()
        # A gauge, because Ray's counters cannot show 0, and the 0 of the model replicas is what an operator looks for.
        self._compilations = gauge(
            "turnstile_grammar_compilations",
            "Grammars compiled since the start of this replica, by the kind of replica (place).",
            ("place",),
        )
        self._events = counter(
            "turnstile_grammar_store_events_total",
            "Hits, misses, puts, evictions and troubles of each tier that keeps grammars.",
            ("tier", "event"),
        )
        begin_at_zero(self._events, *({"tier": tier, "event": event} for tier, event in STORE_TROUBLES))
        self._sizes = {
            "entries": gauge(
                "turnstile_grammar_store_entries",
                "Grammars in each tier of this replica; in the files' as its last scan of the folder counted them.",
                ("tier",),
            ),
            "bytes": gauge(
                "turnstile_grammar_store_bytes", "Bytes of the grammars in each tier of this replica.", ("tier",)
            ),
        }
        self._breaker = gauge(
            "turnstile_grammar_store_breaker_open",
            "1 while this replica does not ask Redis because it was down or slow.",
        )

    def publish(self, compilations: int) -> None:
        """Show the gauges, which Ray forgets when they are not set again, and add what was counted since."""
        self._compilations.set(compilations, {"place": self._place})
        for tier, stats in self._stats().items():
            for name, value in stats.items():
                if name == "breaker":
                    self._breaker.set(int(value != "closed"))
                elif name in self._sizes:
                    self._sizes[name].set(value, {"tier": tier})
                elif new := int(value) - self._published[tier, name]:
                    self._events.inc(new, {"tier": tier, "event": name})
                    self._published[tier, name] = int(value)
