"""What people see while kernels are compiled, once on a machine: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from grammar_workers.matching.kernels.ahead import Progress, compile_kernels

LINE_S = 5.0
_WIDTH = 30


def compile_visibly(out: TextIO, stopped: Callable[[], bool] = lambda: False) -> None:
    """Compile what this machine lacks, and say so on `out`; nothing where all is there. Ends early if `stopped`."""
    begun = time.monotonic()
    told = -LINE_S
    compiling = compile_kernels()
    progress = None
    for progress in compiling:
        seconds = time.monotonic() - begun
        if out.isatty():
            out.write(f"\r{_words(progress)} {_bar(progress)} {seconds:.0f} s")
        elif seconds - told >= LINE_S:
            told = seconds
            out.write(f"{_words(progress)}, {seconds:.0f} s\n")
        out.flush()
        if stopped():
            compiling.close()
    if progress is not None:
        missing = " (the others when they are called)" if progress.done < progress.all else ""
        end = "\n" if out.isatty() else ""
        out.write(f"{end}{progress.done} kernels compiled in {time.monotonic() - begun:.0f} s{missing}\n")
        out.flush()


def _words(progress: Progress) -> str:
    return f"compiling kernels, once for this installation: {progress.done} of {progress.all}"


def _bar(progress: Progress) -> str:
    filled = _WIDTH * progress.done // progress.all
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"
