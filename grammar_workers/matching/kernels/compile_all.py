"""Compilation of the kernels (numba functions) before the first request, by two processes in parallel.

The processes compile all kernels that Python calls, for the argument types of these calls. The machine code is stored
in the kernel cache on disk (see `numba_options.cache`). Later processes load it from there. The command

    python -m grammar_workers.matching.kernels.compile_all SHARE

compiles one half of the kernels (SHARE is 0 or 1), and prints a line for each finished kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from grammar_workers.numba_options import CALLED
from grammar_workers.numba_options.cache import COMPLETE, SOURCES, kernel_folders

# Modules of this package with kernels that Python calls.
_MODULES = [
    ".".join(path.relative_to(Path(__file__).parents[2]).with_suffix("").parts)
    for path in SOURCES
    if path.stem != "__init__" and b"called_with(" in path.read_bytes()
]
# These modules as two shares of about equal compile time.
#
# Those of the first share call each other down to `step`. In two processes, both would compile the shared kernels.
SHARES = [[name for name in _MODULES if name.startswith("matching.kernels.") == is_first] for is_first in (True, False)]
# Interval between two reports of progress, in seconds.
PAUSE_S = 0.25


class Progress(NamedTuple):
    """Progress of the compilation of kernels.

    Attributes:
        done: Number of compiled kernels.
        all: Number of kernels to compile, including the compiled ones.
    """

    done: int
    all: int


def kernels_of(share: int) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the kernels (numba functions) that one of the compile processes has to compile.

    Args:
        share: Number of the process, 0 or 1: an index into `SHARES`, which lists the modules of each process.

    Returns:
        Pairs (kernel, numba types of its arguments), in the order of the modules in the list.
    """
    modules = [importlib.import_module(f"grammar_workers.{name}").__name__ for name in SHARES[share]]
    kernels = [known for known in CALLED if known[0].__module__ in modules]
    return sorted(kernels, key=lambda known: modules.index(known[0].__module__))


def compile_kernels() -> Generator[Progress, None, None]:
    """Compile all kernels (numba functions) in child processes, unless a folder of kernels already has them.

    Kernels in the wheel count, if they fit this processor and the installed versions. If another process already
    compiles the kernels, the generator waits for it. Closing the generator stops the compilation. No error is raised if
    the compilation fails or the cache folder is not writable: kernels are then compiled at their first call.

    Yields:
        The progress, immediately and then several times a second. Nothing if all kernels exist already.
    """
    if any(os.path.exists(each / COMPLETE) for each in kernel_folders()):  # False also for a folder of another user
        return
    folder = kernel_folders()[0]
    marker = folder / COMPLETE
    many = sum(len(kernels_of(share)) for share in range(len(SHARES)))
    done = 0
    yield Progress(done, many)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context(open(folder / "compiling", "w"))
        while not _locked(lock.fileno()):
            yield Progress(done, many)
            time.sleep(PAUSE_S)
        if marker.exists():
            yield Progress(many, many)
            return
        for written in _shares_compiled(folder.parent):
            done += written
            yield Progress(done, many)
        if done == many:
            marker.touch()


def _locked(descriptor: int) -> bool:
    """Acquire the lock for compiling; return whether that succeeded. The lock is released when the file is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _shares_compiled(base: Path) -> Iterator[int]:
    """Yield the number of newly finished kernels, several times a second, until all processes have ended.

    The processes write to the same folder in `base` as this process, also if a program has changed `numba.config`.
    """
    searched = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": searched, "NUMBA_CACHE_DIR": str(base)}
    output, written = os.pipe()
    with open(output, "rb", buffering=0) as lines, contextlib.ExitStack() as processes:
        with open(written, "wb") as shared:
            for share in range(len(SHARES)):
                process = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, str(share)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=shared,
                    start_new_session=True,  # Ctrl-C reaches only this process, which then kills the child
                )
                processes.callback(process.wait)
                processes.callback(process.kill)
        data: bytes | None = None
        while data != b"":  # the end: no process has the pipe open
            data = lines.read(4096) if select.select([lines], [], [], PAUSE_S)[0] else None
            yield data.count(b"\n") if data else 0


def main(share: int) -> None:
    """Compile one half of the kernels (numba functions), or load them from the cache. Print the name of each kernel.

    Args:
        share: Number of the half, 0 or 1: an index into `SHARES`, which lists the modules of each half.
    """
    # Ray's workers have nice 15. With a lower value, this process would hold up a server that starts meanwhile.
    os.nice(15)
    for kernel, arguments in kernels_of(share):
        kernel.compile(arguments)
        print(kernel.__name__, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
