"""Handling of Ctrl-C in a terminal, for a server that another program, such as GNU make, has started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def own_foreground() -> Iterator[None]:
    """Return a context in which Ctrl-C in the terminal reaches this process, but not the program that started it.

    Without the context, GNU make also receives Ctrl-C and reports an error, even if its recipe (this process) stops
    cleanly. The context moves this process to a process group of its own. From then on, this process ignores Ctrl-Z,
    because the shell would not notice that this process has been stopped.

    The context has no effect if this process is not in the foreground process group of a terminal, or if this process
    is the leader of its group.
    """
    terminal = sys.__stdin__.fileno() if sys.__stdin__ is not None and sys.__stdin__.isatty() else None
    group = os.getpgrp()
    try:
        foreground = terminal is not None and group != os.getpid() and os.tcgetpgrp(terminal) == group
    except OSError:  # the terminal of another session
        foreground = False
    if terminal is None or not foreground:
        yield
        return
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # what `tcsetpgrp` sends to the background
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpid())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the terminal, or the program that waits, may be gone
            os.tcsetpgrp(terminal, group)
