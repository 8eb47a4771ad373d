"""What clients get while a server stops. (`make soak` prints exact figures, and more stops.)"""

from __future__ import annotations

import pytest

from tests.integration.stops import SIGTERM_UNDER_LOAD, run

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def test_a_signal_under_load() -> None:
    """None of the answers is 404 or cut, and the server is gone within its deadline, with all that it has started."""
    stop, wrong = await run(SIGTERM_UNDER_LOAD, late_s=30.0)
    assert wrong == []
    assert stop.answers["whole"] > 0 and stop.answers["503"] > 0
