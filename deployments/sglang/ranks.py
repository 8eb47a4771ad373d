"""Equal decisions about grammars in all scheduler processes of SGLang (ranks) that run the same batches.

The first rank compiles a constraint and publishes its decision: the artifact (compiled grammar) or a rejection. The
other ranks wait for the decision:

    rank 0      call 7: compile --> decision 7 in torch's key-value store
    rank 1..n   call 7: wait for decision 7, load its artifact

If each rank decided alone, the decisions could differ, because time limits and queues are local to a process. The
batches would then differ, and the next collective operation would never end. SGLang makes equal calls in equal order in
all ranks, so a number identifies a call.
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

# Size of the parts of a decision. TCPStore rejects values above 8 MiB.
_PART_BYTES = 4 << 20
_POLL_S = 0.002
# Longest wait for a decision. It only ends threads of a server that goes down, because every call is published.
_TIMEOUT = timedelta(minutes=10)
_CALL: contextvars.ContextVar[int] = contextvars.ContextVar("call")


class Ranks:
    """Membership of this process in a group of scheduler processes (ranks) that run the same batches.

    For each constraint, the first rank decides between a compiled grammar and a rejection. The other ranks receive this
    decision.

    Args:
        store: Key-value store of torch that all ranks of the group share. Other groups use other stores or prefixes.
        leads: True if this process is the first rank, which compiles and decides.
        followers: Number of ranks in the group, without the first rank.
    """

    def __init__(self, store: Store, leads: bool, followers: int) -> None:
        self._store = store
        self.leads = leads
        self._followers = followers

    def agree(self, decide: Callable[[], bytes]) -> bytes:
        """Return the first rank's decision (compiled grammar or rejection, as bytes) about the current call.

        The first rank calls `decide` and publishes the bytes. The other ranks wait for the bytes, and raise
        TimeoutError after ten minutes. Call this method on a thread of `NumberedExecutor`, which sets the number of the
        current call.

        Args:
            decide: Function that returns the decision. It is called in the first rank only.

        Returns:
            Bytes of the decision, equal in all ranks. Empty: the first rank has canceled the call, or `decide` has
            raised an exception there.
        """
        call = _CALL.get()
        if not self.leads:
            return self._read(call)
        decision = b""
        try:
            decision = decide()
        finally:
            self.publish(call, decision)
        return decision

    def publish(self, call: int, decision: bytes) -> None:
        """Send the decision about a call (compiled grammar or rejection) to the other ranks.

        Only the first rank may call this method.

        Args:
            call: Number of the call, from 0. `NumberedExecutor` counts the calls in every rank.
            decision: The decision as bytes. Empty: the call was canceled.
        """
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
    """Thread pool of a grammar backend that numbers the submitted calls.

    A *rank* is one of the scheduler processes that run the same batches. SGLang submits equal calls in equal order in
    all ranks. Therefore, a number identifies a call in all ranks.

    Args:
        ranks: Membership of this process in the group of ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks
        self._calls = itertools.count()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on a thread, as the call with the next number. The first number is 0.

        If the call is canceled, the first rank publishes an empty decision, so that the other ranks do not wait.

        Args:
            fn: Function to run. In this function, `Ranks.agree` uses the number of this call.
            *args: Positional arguments of `fn`.
            **kwargs: Keyword arguments of `fn`.

        Returns:
            Future of the return value of `fn`.
        """
        call = next(self._calls)

        def numbered() -> Any:
            _CALL.set(call)
            return fn(*args, **kwargs)

        future = super().submit(numbered)
        if self._ranks.leads:
            future.add_done_callback(lambda done: self._ranks.publish(call, b"") if done.cancelled() else None)
        return future


def scheduler_ranks() -> Ranks | None:
    """Return the membership of this process in the group of SGLang's scheduler processes that run the same batches.

    Call this function in a scheduler process of SGLang, after torch's process group has been initialized.

    Returns:
        The membership. None: this process runs its batches alone.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    # With data-parallel attention, a part of the tensor-parallel ranks runs a batch of its own.
    width = parallel.tp_size // parallel.attn_dp_size
    followers = width * parallel.pp_size - 1
    if not followers:
        return None
    store = PrefixStore(f"turnstile/grammars/{parallel.tp_rank // width}", _get_default_store())
    return Ranks(store, parallel.tp_rank % width == 0 and parallel.pp_rank == 0, followers)
