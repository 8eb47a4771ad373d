"""When what happened to a generation first: for traces, and for how long grammars kept it waiting."""

from __future__ import annotations

import dataclasses
import time
from typing import Literal

Moment = Literal["fetching", "fetched", "constrained", "admitted", "computed", "first_token"]


@dataclasses.dataclass(slots=True)
class Times:
    """Seconds of `time.monotonic`; None where it has not happened. Each moment has one thread that notes it."""

    entered: float = dataclasses.field(default_factory=time.monotonic)
    fetching: float | None = None
    """Its grammar was asked for."""
    fetched: float | None = None
    constrained: float | None = None
    """The engine knows its grammar."""
    admitted: float | None = None
    """It got a slot."""
    computed: float | None = None
    """Its prompt was computed."""
    first_token: float | None = None

    def note(self, moment: Moment) -> None:
        """It happens now, if this is the first time."""
        if getattr(self, moment) is None:
            setattr(self, moment, time.monotonic())

    def grammar_late_s(self) -> float:
        """How many seconds the generation, whose grammar is there now, could do nothing but wait for it."""
        return 0.0 if self.computed is None else time.monotonic() - self.computed

    def spans(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each part that is over, and of the decoding, which ends now."""
        ready = None if self.computed is None else max(self.computed, self.constrained or 0.0)
        parts = [
            ("queue", self.entered, self.admitted),
            ("prefill", self.admitted, self.computed),
            ("load", self.fetching, self.fetched),
            ("first mask", ready, self.first_token),
            ("decode", self.first_token, time.monotonic()),
        ]
        return [(name, began, ended) for name, began, ended in parts if began is not None and ended is not None]
