"""Call of a function in a child process, so that the memory that the function uses is freed after the call."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from grammar_workers.service.parent_death import end_with

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def call_in_child(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Result:
    """Return the value of a function that is called in a forked child process.

    The calling process must have no other threads. If it ends, the child is killed. The value must be picklable. If the
    function raises an exception, this exception is raised here. If the exception is not picklable, RuntimeError is
    raised with its type and text.

    Args:
        function: Function to call.
        arguments: Positional arguments.
        named: Keyword arguments.

    Raises:
        RuntimeError: The child has ended before it sent the value.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        os.close(reader)
        _answer(writer, parent, lambda: function(*arguments, **named))
    os.close(writer)
    with open(reader, "rb") as answer:
        data = answer.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the process that should call {function.__name__} ended with wait status {status}")
    ok, value = pickle.loads(data)
    if not ok:
        raise value
    return value


def _answer(writer: int, parent: int, call: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        end_with(parent)
        try:
            data = pickle.dumps((True, call()))
        except Exception as error:
            traceback.print_exc()
            data = pickle.dumps((False, _as_pickled(error)))
        with open(writer, "wb") as answer:
            answer.write(data)
        status = 0
    finally:
        os._exit(status)


def _as_pickled(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
