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
    for text in _told(stopped, as_bar=out.isatty()):
        out.write(text)
        out.flush()


def compile_logged(logger: logging.Logger) -> None:
    """The same, and the lines are those of a log."""
    for line in _told(lambda: False, as_bar=False):
        logger.info(line.rstrip())


def _told(stopped: Callable[[], bool], *, as_bar: bool) -> Iterator[str]:
    """Lines: one at once, one every few seconds, and the end. `as_bar`: each bar in the place of the one before."""
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
