"""The metrics that both tiers publish, defined once. This package does not know Ray: it is handed the classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypedDict


class MetricDefinition(TypedDict):
    """The arguments of a metric's constructor."""

    name: str
    description: str
    tag_keys: Any
    """A tuple of names; Ray's classes are annotated as if it always had one."""


# A gauge, because Ray's counters cannot show 0, and the 0 of the model replicas is what an operator looks for.
COMPILATIONS: MetricDefinition = {
    "name": "turnstile_grammar_compilations",
    "description": "Grammars compiled since the start of this replica, by the kind of replica (place).",
    "tag_keys": ("place",),
}
STORE_EVENTS: MetricDefinition = {
    "name": "turnstile_grammar_store_events_total",
    "description": "Hits, misses, puts, evictions and troubles of each tier that keeps grammars.",
    "tag_keys": ("tier", "event"),
}
STORE_ENTRIES: MetricDefinition = {
    "name": "turnstile_grammar_store_entries",
    "description": "Grammars in each tier of this replica; in the files' as its last scan of the folder counted them.",
    "tag_keys": ("tier",),
}
STORE_BYTES: MetricDefinition = {
    "name": "turnstile_grammar_store_bytes",
    "description": "Bytes of the grammars in each tier of this replica.",
    "tag_keys": ("tier",),
}
BREAKER: MetricDefinition = {
    "name": "turnstile_grammar_store_breaker_open",
    "description": "1 while this replica does not ask Redis because it was down or slow.",
    "tag_keys": (),
}

Stats = Mapping[str, Mapping[str, int | str]]
"""What `GrammarStore.stats` returns, maybe with further tiers."""


class StoreMetrics:
    """Publishes what `stats` tells, with Ray's classes `Counter` and `Gauge` or others like them."""

    def __init__(self, stats: Callable[[], Stats], counter: Callable[..., Any], gauge: Callable[..., Any]) -> None:
        self._stats = stats
        self._published: Counter[tuple[str, str]] = Counter()
        self._events = counter(**STORE_EVENTS)
        self._sizes = {"entries": gauge(**STORE_ENTRIES), "bytes": gauge(**STORE_BYTES)}
        self._breaker = gauge(**BREAKER)

    def publish(self) -> None:
        """Show the gauges, which Ray forgets when they are not set again, and add what was counted since."""
        for tier, stats in self._stats().items():
            for name, value in stats.items():
                if name == "breaker":
                    self._breaker.set(int(value != "closed"))
                elif name in self._sizes:
                    self._sizes[name].set(value, {"tier": tier})
                elif new := int(value) - self._published[tier, name]:
                    self._events.inc(new, {"tier": tier, "event": name})
                    self._published[tier, name] = int(value)
