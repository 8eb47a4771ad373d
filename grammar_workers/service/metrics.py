"""Metrics that compilers and model replicas both publish.

This module does not import Ray: the callers pass Ray's classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

# Figures as `GrammarStore.stats` returns them, maybe with further tiers.
Stats = Mapping[str, Mapping[str, int | str]]


# Tiers and events of the store that alerts watch.
STORE_TROUBLES = (("automata", "key_mismatch"), ("redis", "unauthorized"))


def begin_at_zero(counter: Any, *labels: Mapping[str, str]) -> None:
    """Export a Ray counter with the value 0 for each label set.

    Without this call, the counter first appears with the value 1, and PromQL's `increase` misses the first event. Ray's
    `Counter.inc` rejects 0, so this function calls a private method of the counter.

    Args:
        counter: Counter of Ray.
        labels: Label sets (label name -> value), one per time series.
    """
    for each in labels:
        counter._record(0, dict(each))


class TierMetrics:
    """Metrics of the grammar store for each of its levels (label `tier`), and the number of compiled grammars.

    Args:
        stats: Function that returns the figures of the store, such as `GrammarStore.stats`.
        component: Kind of the replica, such as `grammar_compiler`. It is the label `component`.
        counter: Ray's class `Counter`, or a class with the same interface.
        gauge: Ray's class `Gauge`, or a class with the same interface.
    """

    def __init__(
        self, stats: Callable[[], Stats], component: str, counter: Callable[..., Any], gauge: Callable[..., Any]
    ) -> None:
        self._stats = stats
        self._component = component
        self._published: Counter[tuple[str, str]] = Counter()
        # A gauge, because Ray's counters cannot show 0, and operators look for the 0 of the model replicas.
        self._compilations = gauge(
            "turnstile_grammar_compilations",
            "Grammars compiled since the start of the replica. `place` is a deprecated label.",
            ("component", "place"),
        )
        self._events = counter(
            "turnstile_grammar_store_events_total",
            "Hits, misses, puts, evictions and errors of each cache level (`tier`).",
            ("tier", "event"),
        )
        begin_at_zero(self._events, *({"tier": tier, "event": event} for tier, event in STORE_TROUBLES))
        self._sizes = {
            "entries": gauge(
                "turnstile_grammar_store_entries",
                "Grammars in each cache level. For files: at the last scan of the folder.",
                ("tier",),
            ),
            "bytes": gauge("turnstile_grammar_store_bytes", "Bytes of the grammars in each cache level.", ("tier",)),
        }
        self._breaker = gauge(
            "turnstile_grammar_store_breaker_open",
            "1 while the replica does not call Redis, because Redis was down or slow.",
        )

    def publish(self, compilations: int) -> None:
        """Set the gauges to the present values, and increase the counter by the new events of the store.

        Call this method every few seconds, because Ray drops gauges that are not set again.

        Args:
            compilations: Number of grammars that this replica has compiled since its start.
        """
        self._compilations.set(compilations, {"component": self._component, "place": self._component})
        for tier, stats in self._stats().items():
            for name, value in stats.items():
                if name == "breaker":
                    self._breaker.set(int(value != "closed"))
                elif name in self._sizes:
                    self._sizes[name].set(value, {"tier": tier})
                elif new := int(value) - self._published[tier, name]:
                    self._events.inc(new, {"tier": tier, "event": name})
                    self._published[tier, name] = int(value)
