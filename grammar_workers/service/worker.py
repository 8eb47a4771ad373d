"""Compile process: runs jobs (compilations of one specification), one at a time, at low priority.

`fork_server` forks the process. The process exchanges messages with its pool (`CompilePool`) over a socket. The
messages are JSON in the framing of `multiprocessing.connection`, never pickles. The process ends when the pool closes
the socket or ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from grammar_workers import GrammarOptions, Vocabulary, warm_up, warm_up_formats
from grammar_workers.compile import compile_artifact
from grammar_workers.errors import GrammarError, LimitExceededError
from grammar_workers.service.child_call import call_in_child
from grammar_workers.service.job import opened
from grammar_workers.vocabulary.vocabulary import load_vocabulary

# (grammar key, specification or `job`, tenant of the request) -> artifact. Raises GrammarError.
CompileFunction = Callable[[str, dict[str, Any], str], bytes]

LOWEST_PRIORITY, BESIDE_PRIORITY = 19, 3
SESSION_PRIORITY = 10


def load_compiler(
    model: str, options: Mapping[str, Any] = MappingProxyType({}), *, trust_remote_code: bool = False
) -> tuple[str, CompileFunction]:
    """Load the vocabulary of a model, warm up the compiler, and return a compile function for this vocabulary.

    The calling process must have no threads, because the vocabulary is loaded in a forked process.

    Args:
        model: Folder or Hugging Face ID of the model.
        options: Fields of `GrammarOptions`. They apply to the fields that a job does not set.
        trust_remote_code: True: run Python files that come with the model, if its tokenizer requires them.

    Returns:
        The fingerprint of the vocabulary, and the compile function. The function has three arguments: the grammar key,
        the specification or a `job` (specification with options), and the tenant. It returns the artifact (compiled
        grammar) as bytes. It raises GrammarError if the specification is rejected, and ValueError if the key does not
        belong to the specification and the options.
    """
    # The library that reads a tokenizer is larger than everything else, and may start threads, which a fork loses.
    vocabulary = call_in_child(load_vocabulary, model, trust_remote_code=trust_remote_code)
    return _compiler(vocabulary, GrammarOptions.model_validate(options))


def load_compiler_of(vocabulary: str) -> tuple[str, CompileFunction]:
    """Return a compile function as `load_compiler` does, for a vocabulary that the parent process has pickled.

    Args:
        vocabulary: Path of the file with the pickled `Vocabulary`. Only the parent process may write to the file.

    Returns:
        The fingerprint of the vocabulary, and the compile function.
    """
    return _compiler(pickle.loads(Path(vocabulary).read_bytes()), GrammarOptions())


def _compiler(vocabulary: Vocabulary, own: GrammarOptions) -> tuple[str, CompileFunction]:
    warm_up(vocabulary)
    warm_up_formats(vocabulary)

    def compile_job(key: str, asked: dict[str, Any], tenant: str) -> bytes:
        specification, options = opened(asked, own)
        return compile_artifact(key, specification, vocabulary, options, tenant)

    return vocabulary.fingerprint, compile_job


def encode(header: dict[str, Any], artifact: bytes = b"") -> bytes:
    """Return one message between a pool and a compile process: a JSON header on the first line, then the artifact.

    Args:
        header: Plain data, such as the status of a job. It is encoded as JSON without line breaks.
        artifact: Bytes of the artifact (compiled grammar). Empty: the message has none.
    """
    return json.dumps(header).encode() + b"\n" + artifact


def decode(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a message between a pool and a compile process into its header and its artifact (compiled grammar).

    Args:
        message: Bytes from `encode`.

    Returns:
        The header as plain data, and the artifact; b"" if the message has none.
    """
    header, _, artifact = message.partition(b"\n")
    return json.loads(header), artifact


def answer_jobs(connection: Connection, compile_artifact: CompileFunction, idle: bool) -> NoReturn:
    """Report to the pool that this process is ready, then run the jobs that the pool sends, one at a time.

    The function never returns. When the pool (`CompilePool`) closes the connection or ends, the process exits. If a job
    fails, the process reports the error to the pool and continues.

    Args:
        connection: Connection to the pool.
        compile_artifact: Function that compiles one job (see `load_compiler`).
        idle: True: scheduling class SCHED_IDLE, which uses only CPU time that other processes leave. False: nice 3.
    """
    _be_first_to_run_out_of_memory()
    threading.Thread(target=_end_with_pool, args=(connection.fileno(),), daemon=True).start()
    connection.send_bytes(encode({"status": "ready"}))
    # The priority is lowered last: on a busy machine, it may take long until the next line runs.
    _lower_priority(idle)
    while True:
        # This thread receives: another one that passed jobs on would have to wait for the CPU on a busy machine.
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        # If the process dies from now on, the job may be the cause.
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
    """End the process when the pool's end of the socket closes. A thread detects this even during a compilation."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)  # POLLHUP and POLLERR are always reported
    hung_up.poll()
    os._exit(0)


def _be_first_to_run_out_of_memory() -> None:
    """Offer this process to the kernel's out-of-memory killer before all others."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _lower_priority(idle: bool) -> None:
    """Leave the CPU to other processes.

    With `idle`, the process uses only CPU time that all others leave, so that it does not delay streams of processes
    that are nice themselves. Without `idle`, it stays in the session of its pool: a process of that session that waits
    in a loop yields the CPU within the session only.
    """
    if not idle:
        # With a higher nice value, it would wait long and then end several compilations, whose prompts enter one step.
        os.nice(BESIDE_PRIORITY)
        return
    os.nice(LOWEST_PRIORITY)
    # Ray's workers have nice 15, so 19 makes no difference. A class below all nice values does.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # If Linux shares the CPU by session first, nice values count only within a session, and this process has its own.
    # The session gets about a tenth of the weight of another one, so that a saturated machine still compiles.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(SESSION_PRIORITY))
