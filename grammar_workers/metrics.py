"""The metric that both tiers publish, defined once. Plain data: this package does not know Ray."""

from __future__ import annotations

from typing import TypedDict


class MetricDefinition(TypedDict):
    """The arguments of a metric's constructor."""

    name: str
    description: str
    tag_keys: tuple[str]


# A gauge, because Ray's counters cannot show 0, and the 0 of the model replicas is what an operator looks for.
COMPILATIONS: MetricDefinition = {
    "name": "turnstile_grammar_compilations",
    "description": "Grammars compiled since the start of this replica, by the kind of replica (place).",
    "tag_keys": ("place",),
}
