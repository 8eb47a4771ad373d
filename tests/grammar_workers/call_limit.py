"""A bound on the Python and C calls of a block. Native code counts them: Python code takes longer than most calls."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numba
from numba import types

# Events of `PyEval_SetProfile` in Python's C API.
_CALL, _C_CALL = 0, 4
# The first word of the content of a bytes object.
_CONTENT = (bytes.__basicsize__ - 1) // 8
_ENOUGH = 1 << 62


class TooMuchWorkError(BaseException):
    """Not an Exception, so that nothing under test can swallow it."""


@contextlib.contextmanager
def at_most(calls: int) -> Iterator[None]:
    """Fail as soon as the block has made more calls than this."""
    set_profile = _function("PyEval_SetProfile", ctypes.c_void_p, ctypes.c_void_p)
    count = _counter()
    left = calls.to_bytes(8, "little")
    set_profile(count.address, id(left))
    try:
        yield
    except TooMuchWorkError as error:
        error.add_note(f"more than {calls} calls")
        raise
    finally:
        set_profile(None, None)


def _function(name: str, *arguments: Any) -> Any:
    """A function of Python's C API that returns nothing."""
    function = getattr(ctypes.PyDLL(None), name)
    function.argtypes, function.restype = arguments, None
    return function


@functools.cache
def _counter() -> Any:
    """The native function that counts down in a bytes object of eight bytes, and raises below zero."""
    error = id(TooMuchWorkError)
    set_error = _function("PyErr_SetNone", ctypes.c_void_p)

    @numba.cfunc(types.int32(types.CPointer(types.int64), types.voidptr, types.int32, types.voidptr))
    def count(left: Any, frame: Any, event: int, argument: Any) -> int:
        if event != _CALL and event != _C_CALL:
            return 0
        left[_CONTENT] -= 1
        if left[_CONTENT] >= 0:
            return 0
        left[_CONTENT] = _ENOUGH
        set_error(error)
        return -1

    return count
