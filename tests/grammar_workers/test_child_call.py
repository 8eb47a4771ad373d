"""Calls in a process of their own."""

from __future__ import annotations

import os
import signal

import pytest

from grammar_workers import Vocabulary
from grammar_workers.service.child_call import call_in_child


class UnpicklableError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def refuse(kind: str) -> None:
    raise UnpicklableError("not", "this") if kind == "unpicklable" else FileNotFoundError(2, "no such model", kind)


def test_the_result_comes_back_from_another_process() -> None:
    child = call_in_child(os.getpid)
    assert child != os.getpid()
    large = call_in_child(bytes, 10_000_000)
    assert len(large) == 10_000_000
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_errors_come_back() -> None:
    with pytest.raises(FileNotFoundError, match="no such model"):
        call_in_child(refuse, "folder")
    with pytest.raises(RuntimeError, match="UnpicklableError: not this"):
        call_in_child(refuse, "unpicklable")
    with pytest.raises(RuntimeError, match="wait status 9"):
        call_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises((AttributeError, TypeError), match="pickle|local object"):
        call_in_child(lambda: lambda: None)


def test_a_vocabulary_comes_back_as_it_was() -> None:
    vocabulary = Vocabulary([b"a", None, b"\xc3", b"end", b"a"], [3], {"<s>": 1}, size=8)
    vocabulary.trees  # noqa: B018 - which stay behind
    copy = call_in_child(lambda: vocabulary)
    assert copy.fingerprint == vocabulary.fingerprint
    assert [copy.token_bytes(token) for token in range(8)] == [vocabulary.token_bytes(token) for token in range(8)]
    assert (copy.eos_token_ids, copy.special_tokens) == (vocabulary.eos_token_ids, vocabulary.special_tokens)
