"""Mask rows on their way from automata to the sampler."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest

from gpu_workers.guided import masks
from gpu_workers.guided.forced_text import ForcedTextFinder
from gpu_workers.guided.masks import Constraint, MaskReader
from grammar_workers import compile_grammar
from tests.gpu_workers.support import byte_vocabulary


class AtOnce(Executor):
    """Runs what is submitted before it returns."""

    def submit(self, job: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(job(*args, **kwargs))
        return future


def test_a_row_that_states_share_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    read_row = masks.read_row

    def counting(*arguments: Any) -> Any:
        counted.append(arguments)
        return read_row(*arguments)

    monkeypatch.setattr(masks, "read_row", counting)
    fsm = compile_grammar({"type": "regex", "pattern": "[a-z]{9}"}, byte_vocabulary())
    reader = MaskReader(AtOnce(), byte_vocabulary().eos_token_ids, 256, wake=lambda: None)
    constraint = Constraint(fsm, fsm.initial_state, reader.table(fsm))
    rows = []
    for letter in b"turnstile":
        rows.append(constraint.allowed())
        constraint.accept(letter)
        constraint.catch_up()
    assert len({id(row) for row in rows}) == 1 and len(counted) == 1
    last = constraint.allowed()
    assert last is not None and last.only_end and len(counted) == 2


class Later(Executor):
    """Keeps one job until `run`."""

    def submit(self, job: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.run, future = partial(job, *args, **kwargs), Future[Any]()
        return future


class Never(Executor):
    def submit(self, job: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("passed to a thread")


def test_rows_that_are_there_pass_between_no_threads() -> None:
    fsm = compile_grammar({"type": "regex", "pattern": "[a-z]{2}(on|off)"}, byte_vocabulary())
    reader = MaskReader(Never(), byte_vocabulary().eos_token_ids, 256, wake=lambda: None)
    constraint = Constraint(fsm, fsm.initial_state, reader.table(fsm))
    with pytest.raises(AssertionError):
        constraint.allowed()
    fsm.prefetch_masks()
    for letter in b"abon":
        row = constraint.allowed()
        assert row is not None and row.token_ids is not None
        assert set(row.token_ids.tolist()) == fsm.allowed_tokens(constraint.state)
        constraint.accept(letter)
        constraint.catch_up()


def test_forced_text_is_searched_for_once_on_its_way() -> None:
    vocabulary = byte_vocabulary()
    finder = ForcedTextFinder(vocabulary)
    searched = []
    search = finder.find
    finder.find = lambda fsm, state, mask_of: searched.append(state) or search(fsm, state, mask_of)  # type: ignore[method-assign, func-returns-value]
    reader = MaskReader(AtOnce(), vocabulary.eos_token_ids, 256, wake=lambda: None, finder=finder)
    fsm = compile_grammar({"type": "regex", "pattern": "[xy]forced text, and more of it"}, vocabulary)
    fsm.prefetch_masks()
    constraint = Constraint(fsm, fsm.initial_state, reader.table(fsm))
    text = b"xforced text, and more of it"
    for position, letter in enumerate(text):
        constraint.allowed()
        found = constraint.table.forced_text(constraint.state)
        assert bytes(found.token_ids if found else ()) == (text[position:] if position else b"")
        constraint.accept(letter)
        constraint.catch_up()
    assert len(searched) == 1


def test_forced_text_between_masks_that_are_there_passes_between_no_threads() -> None:
    vocabulary = byte_vocabulary()
    fsm = compile_grammar({"type": "regex", "pattern": "[xy]forced text[01]"}, vocabulary)
    fsm.prefetch_masks()
    reader = MaskReader(Never(), vocabulary.eos_token_ids, 256, wake=lambda: None, finder=ForcedTextFinder(vocabulary))
    constraint = Constraint(fsm, fsm.initial_state, reader.table(fsm))
    assert constraint.allowed() is not None
    constraint.accept(ord("x"))
    constraint.catch_up()
    assert constraint.allowed() is not None
    found = constraint.table.forced_text(constraint.state)
    assert found is not None and bytes(found.token_ids) == b"forced text"


def test_forced_text_behind_a_mask_that_is_not_there_is_searched_by_a_thread() -> None:
    vocabulary = byte_vocabulary()
    fsm = compile_grammar({"type": "regex", "pattern": "forced text[01]"}, vocabulary)
    fsm.allowed_mask(fsm.initial_state)
    later = Later()
    reader = MaskReader(later, vocabulary.eos_token_ids, 256, wake=lambda: None, finder=ForcedTextFinder(vocabulary))
    constraint = Constraint(fsm, fsm.initial_state, reader.table(fsm))
    assert constraint.allowed() is not None and constraint.table.forced_text(constraint.state) is None
    later.run()
    found = constraint.table.forced_text(constraint.state)
    assert found is not None and bytes(found.token_ids) == b"forced text"
