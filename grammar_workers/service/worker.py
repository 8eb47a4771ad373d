"""What a compile process does: it answers jobs, one at a time, at the lowest priority and within its limits.

It is forked by `fork_server` and talks to its pool over a socket in messages of `multiprocessing.connection` framing:
JSON, never pickles. It ends when the pool's end of the socket closes, however the pool's process came to die.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from grammar_workers import GrammarOptions, compile_grammar, warm_up, warm_up_formats
from grammar_workers.costs import most_expensive
from grammar_workers.errors import GrammarError, LimitExceededError
from grammar_workers.service.child_call import call_in_child
from grammar_workers.service.job import opened
from grammar_workers.vocabulary.vocabulary import load_vocabulary

CompileFunction = Callable[[str, dict[str, Any], str], bytes]
"""(grammar key, specification or `job`, tenant who asks) -> artifact; raises GrammarError."""

LOWEST_PRIORITY, BESIDE_PRIORITY = 19, 3
SESSION_PRIORITY = 10


def load_compiler(
    model: str, options: dict[str, Any], *, trust_remote_code: bool = False
) -> tuple[str, CompileFunction]:
    """The vocabulary's fingerprint and the compile function for `model`, warm."""
    fingerprint, compile_artifact = load_compiler_with_options(model, trust_remote_code=trust_remote_code)
    own = GrammarOptions.model_validate(options)

    def compile_with_options(key: str, asked: dict[str, Any], tenant: str) -> bytes:
        specification, all_options = opened(asked, own)
        return compile_artifact(key, {"specification": specification, "options": all_options.model_dump()}, tenant)

    return fingerprint, compile_with_options


def load_compiler_with_options(model: str, *, trust_remote_code: bool = False) -> tuple[str, CompileFunction]:
    """As `load_compiler`, for jobs that bring their options: `{"specification": ..., "options": ...}`."""
    # What reads a tokenizer is larger than all the rest, and may start threads, which no fork survives.
    vocabulary = call_in_child(functools.partial(load_vocabulary, trust_remote_code=trust_remote_code), model)
    warm_up(vocabulary)
    warm_up_formats(vocabulary)

    def compile_artifact(key: str, job: dict[str, Any], tenant: str) -> bytes:
        started = time.monotonic()
        options = GrammarOptions.model_validate(job["options"])
        fsm = compile_grammar(job["specification"], vocabulary, options=options)
        if fsm.key != key:
            raise ValueError(f"the specification's key is {fsm.key}, not {key}: other vocabulary, options or version")
        compiled = time.monotonic()
        fsm.allowed_mask(fsm.initial_state)
        return fsm.to_bytes(
            {
                "owner": tenant,
                "compile_seconds": round(compiled - started, 6),
                "first_mask_seconds": round(time.monotonic() - compiled, 6),
                "memory_bytes": fsm.nbytes,
                "costs": most_expensive(fsm.costs, job["specification"]),
            }
        )

    return vocabulary.fingerprint, compile_artifact


def encode(header: dict[str, Any], artifact: bytes = b"") -> bytes:
    """One message: a JSON header on the first line, then the artifact."""
    return json.dumps(header).encode() + b"\n" + artifact


def decode(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Inverse of `encode`."""
    header, _, artifact = message.partition(b"\n")
    return json.loads(header), artifact


def answer_jobs(connection: Connection, compile_artifact: CompileFunction, idle: bool) -> NoReturn:
    """Report ready, then answer jobs until the pool is gone, which ends the process."""
    _be_first_to_run_out_of_memory()
    threading.Thread(target=_end_with_pool, args=(connection.fileno(),), daemon=True).start()
    connection.send_bytes(encode({"status": "ready"}))
    # Only now: on a busy machine it may be long until the next line runs.
    _lower_priority(idle)
    while True:
        # By this thread: another one that passed jobs on would have to be given the CPU first, on a busy machine late.
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        # What kills the process from now on may be the job's fault.
        connection.send_bytes(encode({"status": "begun"}))
        connection.send_bytes(_answer(compile_artifact, decode(message)[0]))


def _answer(compile_artifact: CompileFunction, job: dict[str, Any]) -> bytes:
    try:
        artifact = compile_artifact(job["key"], job["specification"], job["tenant"])
        return encode({"status": "compiled"}, artifact)
    except (GrammarError, RecursionError) as error:
        too_deep = LimitExceededError("the specification is nested too deeply")
        refusal = error if isinstance(error, GrammarError) else too_deep
        return encode({"status": "refused", "error": refusal.to_dict()})
    except MemoryError:
        return encode({"status": "out_of_memory"})
    except Exception as error:
        traceback.print_exc()
        return encode({"status": "failed", "message": f"{type(error).__name__}: {error}"})


def _end_with_pool(descriptor: int) -> None:
    """The pool's death, noticed even while a compilation runs: it hangs up, and only that wakes this thread."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)  # POLLHUP and POLLERR are always told
    hung_up.poll()
    os._exit(0)


def _be_first_to_run_out_of_memory() -> None:
    """Offer this process to the kernel's out-of-memory killer before all others."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _lower_priority(idle: bool) -> None:
    """Leave the CPU to the streams of other processes; `idle`: all of it, in a session of one's own."""
    if not idle:
        # Nicer, it would get no turn for long and then end several compilations: one step would have all their prompts.
        os.nice(BESIDE_PRIORITY)
        return
    os.nice(LOWEST_PRIORITY)
    # Ray's workers have nice 15 themselves, and beside that 19 is no difference: a class below all nice values is.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Where Linux shares the CPU out by session first, nice values count only inside one, and this process has its own.
    # The session gets about a tenth of the weight of another one, so that a saturated machine still compiles.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(SESSION_PRIORITY))
