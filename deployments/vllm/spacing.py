"""Who was held up together leaves apart."""

from __future__ import annotations


class Spacing:
    """When those may leave who came one by one and became ready together: half as far apart as they came, or farther.

    Compile processes get the CPU that vLLM leaves, so several compilations may end in a row. Their prompts would enter
    one step of the engine, which every stream waits for. Who came together leaves together. Nobody waits longer than
    half as long as somebody before was held up, and a queue dissolves as fast as it grew.
    """

    def __init__(self) -> None:
        self._came = self._left = 0.0

    def delay(self, came: float, ready: float) -> float:
        """Seconds that the next has to wait, who came and is ready at these times by one clock (s, positive)."""
        self._left = max(ready, self._left + max(0.0, came - self._came) / 2)
        self._came = max(came, self._came)
        return self._left - ready
