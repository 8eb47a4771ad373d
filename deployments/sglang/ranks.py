"""Scheduler processes that run the same batches: the first one compiles, the others load what it publishes.

    rank 0      call 7: compile --> decision 7 in torch's key-value store
    rank 1..n   call 7: wait for decision 7, load its artifact

Ranks that decide by themselves can disagree, since time limits and queues are local to a process. Then their batches
differ, and the next collective operation never ends. SGLang makes the same calls in the same order in all of them, so a
number identifies a call.
"""

from __future__ import annotations

import contextvars
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

_PART_BYTES = 4 << 20
"""TCPStore refuses values above 8 MiB."""
_POLL_S = 0.002
_TIMEOUT = timedelta(minutes=10)
"""The first rank publishes every call, also a canceled one. This only bounds threads of a server that goes down."""
_CALL: contextvars.ContextVar[int] = contextvars.ContextVar("call")


class Ranks:
    """One process's part in deciding together.

    Args:
        store: A key-value store that all of these ranks, and no others, use for this.
        leads: This process decides.
        followers: The number of the other processes.
    """

    def __init__(self, store: Store, leads: bool, followers: int) -> None:
        self._store = store
        self.leads = leads
        self._followers = followers

    def agree(self, decide: Callable[[], bytes]) -> bytes:
        """Return the decision about the call that runs on this thread. Only the first rank calls `decide`."""
        call = _CALL.get()
        if not self.leads:
            return self._read(call)
        decision = decide()
        self.publish(call, decision)
        return decision

    def publish(self, call: int, decision: bytes) -> None:
        """Let the other ranks read a decision. An empty one means that the call was canceled."""
        parts = range(0, len(decision), _PART_BYTES)
        for part, start in enumerate(parts):
            self._store.set(f"{call}/{part}", decision[start : start + _PART_BYTES])  # type: ignore[arg-type] # takes bytes
        # Last, because readers wait for it.
        self._store.set(str(call), str(len(parts)))

    def _read(self, call: int) -> bytes:
        deadline = time.monotonic() + _TIMEOUT.total_seconds()
        # `Store.wait` would keep the process's only connection, which SGLang uses as well.
        while not self._store.check([str(call)]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the first rank published no decision about grammar {call}")
            time.sleep(_POLL_S)
        parts = [f"{call}/{part}" for part in range(int(self._store.get(str(call))))]
        decision = b"".join(self._store.get(part) for part in parts)
        if self._store.add(f"{call}/readers", 1) == self._followers:
            for key in (*parts, str(call), f"{call}/readers"):
                self._store.delete_key(key)
        return decision


class NumberedExecutor(ThreadPoolExecutor):
    """The threads of a grammar backend, which number the calls that SGLang's scheduler submits."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks
        self._calls = itertools.count()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = next(self._calls)

        def numbered() -> Any:
            _CALL.set(call)
            return fn(*args, **kwargs)

        future = super().submit(numbered)
        if self._ranks.leads:
            future.add_done_callback(lambda done: self._ranks.publish(call, b"") if done.cancelled() else None)
        return future


def scheduler_ranks() -> Ranks | None:
    """Return this scheduler's part among those that run the same batches. None if it runs them alone."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    # With data-parallel attention, a part of the tensor-parallel ranks runs a batch of its own.
    width = parallel.tp_size // parallel.attn_dp_size
    followers = width * parallel.pp_size - 1
    if not followers:
        return None
    store = PrefixStore(f"turnstile/grammars/{parallel.tp_rank // width}", _get_default_store())
    return Ranks(store, parallel.tp_rank % width == 0 and parallel.pp_rank == 0, followers)
