"""The guard of a process's memory, before readings that the test chooses and before real ones."""

from __future__ import annotations

import mmap
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grammar_workers.service.memory_guard import GUARD, MemoryGuard, ProcessFullError

MIB = 1 << 20


class Memory:
    """Readings of a process."""

    def __init__(self) -> None:
        self.bytes = 100 * MIB

    def __call__(self) -> int:
        return self.bytes


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def guard(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> MemoryGuard:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    guard = MemoryGuard(memory)
    guard.start(10)
    monkeypatch.undo()
    return guard


def test_a_full_process_refuses_until_memory_is_free(guard: MemoryGuard, memory: Memory) -> None:
    for size, is_full in ((110, False), (111, True), (110, False)):
        memory.bytes = size * MIB
        guard.look()
        if is_full:
            with pytest.raises(ProcessFullError, match="process_growth_mb"):
                guard.check()
        else:
            guard.check()


def test_the_call_that_has_grown_most_ends(
    guard: MemoryGuard, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    begun, over = [threading.Event(), threading.Event()], threading.Event()

    def work(number: int) -> str:
        begun[number].set()
        while not over.is_set():
            time.sleep(0.001)
        return "done"

    with ThreadPoolExecutor(2) as threads:
        large = threads.submit(guard.call, "the large one", work, 0)
        begun[0].wait()
        memory.bytes += 8 * MIB
        guard.look()
        small = threads.submit(guard.call, "the small one", work, 1)
        begun[1].wait()
        memory.bytes += 4 * MIB
        guard.look()
        with pytest.raises(MemoryError):
            large.result(60)
        # The same threads go on.
        assert threads.submit(guard.call, "the next one", int, "7").result(60) == 7
        over.set()
        assert small.result(60) == "done"
    assert "the large one" in caplog.text and "the small one" not in caplog.text


def test_what_grows_without_end_is_ended() -> None:
    guard = MemoryGuard()
    guard.start(100)
    kept: list[mmap.mmap] = []

    def grow() -> None:
        while True:  # not for ever: the guard's thread may have to wait for the processor
            if len(kept) < 400:
                # Mapped pages are new. Objects may get memory that the process has already.
                kept.append(mmap.mmap(-1, MIB))
                kept[-1].write(bytes(MIB))
            else:
                time.sleep(0.001)

    try:
        with pytest.raises(MemoryError):
            guard.call("a bomb", grow)
    finally:
        kept.clear()
        guard.start(1 << 30)  # its thread goes on beside other tests


def test_the_guard_of_a_process_is_pickled_by_name() -> None:
    """Serve pickles the classes of deployments, with what their methods name."""
    assert pickle.loads(pickle.dumps(GUARD)) is GUARD
