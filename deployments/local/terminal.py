"""The terminal of a server that another program has started, such as make."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def own_foreground() -> Iterator[None]:
    """Receive Ctrl-C alone, where this process was started in the foreground of a terminal by a program that waits.

    GNU make ends by Ctrl-C itself, with an error, although its recipe ends well. Ctrl-Z has no effect then: the shell
    would not notice.
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
