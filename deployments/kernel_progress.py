"""What people see while kernels are compiled, once for an installation: a bar on a terminal, elsewhere a line now and
then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from grammar_workers.matching.kernels.ahead import Progress, compile_kernels

LINE_S = 5.0
_WIDTH = 30


def compile_visibly(out: TextIO, stopped: Callable[[], bool] = lambda: False) -> None:
    """Compile what this machine lacks, and say so on `out`; nothing where all is there. Ends early if `stopped`."""
    lines = _bars(stopped) if out.isatty() else (f"{line}\n" for line in _lines(stopped))
    for line in lines:
        out.write(line)
        out.flush()


def compile_logged(logger: logging.Logger) -> None:
    """The same, and the lines are those of a log."""
    for line in _lines(lambda: False):
        logger.info(line)


def _lines(stopped: Callable[[], bool]) -> Iterator[str]:
    """One at once, one every few seconds, and the end."""
    told = -LINE_S
    progress, seconds = None, 0.0
    for progress, seconds in _compiling(stopped):
        if seconds - told >= LINE_S:
            told = seconds
            yield f"{_words(progress)}, {seconds:.0f} s"
    if progress is not None:
        yield _end(progress, seconds)


def _bars(stopped: Callable[[], bool]) -> Iterator[str]:
    """Each in the place of the one before, and the end."""
    progress, seconds = None, 0.0
    for progress, seconds in _compiling(stopped):
        yield f"\r{_words(progress)} {_bar(progress)} {seconds:.0f} s"
    if progress is not None:
        yield f"\n{_end(progress, seconds)}\n"


def _compiling(stopped: Callable[[], bool]) -> Iterator[tuple[Progress, float]]:
    """How far it is, and the seconds since the beginning."""
    begun = time.monotonic()
    compiling = compile_kernels()
    for progress in compiling:
        yield progress, time.monotonic() - begun
        if stopped():
            compiling.close()


def _words(progress: Progress) -> str:
    return f"compiling Turnstile's kernels, once for this installation: {progress.done} of {progress.all}"


def _bar(progress: Progress) -> str:
    filled = _WIDTH * progress.done // progress.all
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"


def _end(progress: Progress, seconds: float) -> str:
    missing = " (the others when they are called)" if progress.done < progress.all else ""
    return f"{progress.done} kernels compiled in {seconds:.0f} s{missing}"
