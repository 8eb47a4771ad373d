"""An upgrade of the compiler's version and of the artifact format under load, and the way back."""

from __future__ import annotations

import pytest

from tests.chaos.upgrade import faults, phases

REQUESTS = 40


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_an_upgrade_and_the_way_back_lose_nothing_and_compile_nothing_twice() -> None:
    names = []
    for phase in phases(REQUESTS):
        assert faults(phase) == []
        names.append(phase.name)
    assert names == ["old alone", "side by side", "old drains", "new alone", "back"]
