"""No collections while anything is compiled, and collections as before afterwards."""

from __future__ import annotations

import gc

import pytest

from grammar_workers.collector import CollectorPause


def test_collections_go_on_after_the_last_compilation() -> None:
    pause = CollectorPause()
    assert gc.isenabled()
    with pause:
        assert not gc.isenabled()
        with pause, pytest.raises(ValueError, match="broken"):
            raise ValueError("broken")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_off_before_stays_off() -> None:
    pause = CollectorPause()
    gc.disable()
    try:
        with pause:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
