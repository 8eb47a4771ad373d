"""Times of the lifecycle events of one generation, for traces and the metric `turnstile_grammar_wait_seconds`."""

from __future__ import annotations

import time
from typing import Literal

Moment = Literal["fetching", "fetched", "constrained", "admitted", "computed", "first_token"]


class Times:
    """Time of the first occurrence of each lifecycle event of one generation, in seconds of `time.monotonic`.

    Each event is recorded by one thread only. The events are:

    - `entered`: the request entered the engine. This is the time at which the object is created.
    - `fetching`: the engine requested the grammar.
    - `fetched`: the grammar was loaded.
    - `constrained`: the engine thread received the grammar.
    - `admitted`: the sequence got a slot of the KV cache.
    - `computed`: the device has computed the hidden state of the last prompt token.
    - `first_token`: the first token was appended.
    """

    def __init__(self) -> None:
        self._at: dict[str, float] = {"entered": time.monotonic()}

    def note(self, moment: Moment) -> None:
        """Set the time of an event to now. If the event already has a time, nothing changes.

        Args:
            moment: Name of the event.
        """
        self._at.setdefault(moment, time.monotonic())

    def grammar_late_s(self) -> float:
        """Return the seconds from the end of prefill until now; 0 if prefill has not ended.

        When the grammar arrives, this is the time for which the generation has waited for the grammar alone.
        """
        return time.monotonic() - self._at["computed"] if "computed" in self._at else 0.0

    def spans(self) -> list[tuple[str, float, float]]:
        """Return the phases of the generation so far. Call this method when the generation ends.

        Returns:
            Tuples (name of the phase, start, end), with times in seconds of `time.monotonic`. The names are:

            - `queue`: wait for a slot of the KV cache.
            - `prefill`: computation of the prompt.
            - `load`: loading of the grammar.
            - `first mask`: from the time when prompt and grammar are ready to the first token.
            - `decode`: from the first token to this call.

            A phase that has not ended is left out, except `decode`.
        """
        at = self._at.get
        computed = at("computed")
        ready = None if computed is None else max(computed, at("constrained", 0.0))
        parts = [
            ("queue", at("entered"), at("admitted")),
            ("prefill", at("admitted"), computed),
            ("load", at("fetching"), at("fetched")),
            ("first mask", ready, at("first_token")),
            ("decode", at("first_token"), time.monotonic()),
        ]
        return [(name, began, ended) for name, began, ended in parts if began is not None and ended is not None]
