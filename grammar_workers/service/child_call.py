"""A function call in a process of its own, of which nothing stays but the result."""

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
    """What the function returns, which must pickle. For processes without threads; it ends with this one.

    Raises what the function raises, or RuntimeError with its text where that does not pickle, or when the child died.
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
