"""Progress output while Turnstile's kernels are compiled: a bar on a terminal, otherwise lines or log records.

Kernels are Python functions that numba compiles to machine code. They are compiled once per installation. A cache
folder keeps the machine code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TextIO

from grammar_workers.matching.kernels.compile_all import Progress, compile_kernels

# Seconds between two progress lines.
LINE_S = 5.0
_WIDTH = 30


def compile_visibly(out: TextIO) -> None:
    """Compile the kernels (functions in numba) that are missing in the cache folder, and write the progress to `out`.

    Nothing is written if the cache has all kernels.

    Args:
        out: Text stream. On a terminal the progress is a bar, otherwise a line every 5 seconds (`LINE_S`).
    """
    for text in _told(lambda: False, as_bar=out.isatty()):
        out.write(text)
        out.flush()


def compile_logged(log: Callable[[str], object], stopped: Callable[[], bool] = lambda: False) -> None:
    """Compile the kernels (functions in numba) that are missing in the cache folder, and log the progress.

    Nothing is logged if the cache has all kernels.

    Args:
        log: Function that receives a line every 5 seconds (`LINE_S`) and at the end, such as `logger.info`.
        stopped: Function that is called several times a second. If it returns True, this function ends early. The
            kernels that are still missing are then compiled at their first call.
    """
    for line in _told(stopped, as_bar=False):
        log(line.rstrip())


def _told(stopped: Callable[[], bool], *, as_bar: bool) -> Iterator[str]:
    """Compile the missing kernels and yield progress lines. With `as_bar`, each overwrites the line before it."""
    begun = time.monotonic()
    told, seconds, progress = -LINE_S, 0.0, None
    compiling = compile_kernels()
    for progress in compiling:
        seconds = time.monotonic() - begun
        if as_bar:
            yield f"\r{_words(progress)} {_bar(progress)} {seconds:.0f} s"
        elif seconds - told >= LINE_S:
            told = seconds
            yield f"{_words(progress)}, {seconds:.0f} s\n"
        if stopped():
            compiling.close()
    if progress is not None:
        missing = " (the others when they are called)" if progress.done < progress.all else ""
        yield "\n" * as_bar + f"{progress.done} kernels compiled in {seconds:.0f} s{missing}\n"


def _words(progress: Progress) -> str:
    return f"compiling Turnstile's kernels, once for this installation: {progress.done} of {progress.all}"


def _bar(progress: Progress) -> str:
    filled = _WIDTH * progress.done // progress.all
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"
