"""Compiles the kernels before somebody waits for one: all that Python calls, for the types it calls them with, by two
processes side by side. What they leave in the cache (see `numba_options.cache`) is loaded by every process after them.

    python -m grammar_workers.matching.kernels.ahead SHARE

does one share, and writes a line for each kernel that is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
from numba.core.registry import cpu_target

from grammar_workers.numba_options import CALLED
from grammar_workers.numba_options.cache import SOURCES

SHARES = (
    # They call each other down to `step`: two processes would both compile what is below.
    ("matching.kernels.entry", "matching.kernels.mask_classes", "matching.kernels.prefetch", "matching.kernels.step"),
    (
        "languages.regex.determinize_kernel",
        "dfa.minimize",
        "dfa.product",
        "dfa.row_hash",
        "dfa.suffix_automaton",
        "vocabulary.folded_trie",
        "vocabulary.slices",
        "vocabulary.trie",
        "pushdown.byte_classes",
        "pushdown.instructions",
        "pushdown.span_layout",
        "matching.kernels.cfg",
        "matching.kernels.transitions",
        "matching.mask_store",
    ),
)
"""The modules (of this package) with kernels that Python calls. Each share takes about as long as the other."""
PAUSE_S = 0.25


class Progress(NamedTuple):
    """How many kernels are compiled, of how many."""

    done: int
    all: int


def kernels_of(share: int) -> list[tuple[Any, tuple[Any, ...]]]:
    """The kernels of a share, each with the types of its arguments."""
    modules = [importlib.import_module(f"grammar_workers.{name}").__name__ for name in SHARES[share]]
    kernels = [known for known in CALLED if known[0].__module__ in modules]
    return sorted(kernels, key=lambda known: modules.index(known[0].__module__))


def compile_kernels() -> Generator[Progress, None, None]:
    """Compile what the cache lacks for this processor; yields at once, and again several times a second.

    Yields nothing where all is there. Another process that does the same is waited for. Closing it ends the compiling.
    What cannot be compiled ahead, as where no cache can be written, is compiled when it is called.
    """
    folder = Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    # What numba asks, too, before it takes a kernel from the cache: for which processor, and from a file of what age.
    needed = (cpu_target.target_context.codegen().magic_tuple(), [path.stat().st_mtime_ns for path in SOURCES])
    marker = folder / f"complete-{hashlib.sha256(repr(needed).encode()).hexdigest()[:16]}"
    if marker.exists():
        return
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
        for written in _shares_compiled():
            done += written
            yield Progress(done, many)
        if done == many:
            marker.touch()


def _locked(descriptor: int) -> bool:
    """Whether this process may compile now. The lock ends with the file, and so with the process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _shares_compiled() -> Iterator[int]:
    """How many kernels more are done, several times a second, until all are or the processes have ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = []
    with selectors.DefaultSelector() as outputs:
        try:
            for share in range(len(SHARES)):
                command = [sys.executable, "-m", __spec__.name, str(share)]
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for this process, which then ends it
                )
                processes.append(process)
                outputs.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            while outputs.get_map():
                written = 0
                for key, _ in outputs.select(PAUSE_S):
                    data = os.read(key.fd, 4096)
                    written += data.count(b"\n")
                    if not data:
                        outputs.unregister(key.fileobj)
                yield written
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def main(share: int) -> None:
    """Compile a share, or load what is compiled already."""
    for kernel, arguments in kernels_of(share):
        kernel.compile(arguments)
        print(kernel.__name__, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
