"""Function that ties the life of a process to its parent: the kernel kills the process when the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends: the thread that started it, or the whole process.

    If the parent has ended already, this process exits at once with code 1.

    Args:
        parent: Process ID of the parent.

    Raises:
        OSError: The system call `prctl` fails.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)  # the parent had ended before
