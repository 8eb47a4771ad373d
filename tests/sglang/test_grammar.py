"""One grammar under the calls of SGLang's scheduler: ends, drafts, limits, handing over, refusals."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.constrained import base_grammar_backend as base

from deployments.sglang import plugin
from deployments.vllm.interface import UnknownInterfaceError
from gpu_workers.vllm.grammar import RequestGrammar
from grammar_workers.errors import LimitExceededError
from tests.sglang.conftest import Start
from tests.sglang.scheduler import SPECULATION, Request, Scheduler, is_refusal, prebuilt, request

DEEP = 'root ::= "(" root ")" | "a"'


def compiled(scheduler: Scheduler, field: str, text: str, **about: Any) -> Request:
    one = request(field, text, **about)
    scheduler.admit([one])
    assert one.to_finish is None, one.to_finish
    return one


def allowed(grammar: Any, width: int) -> set[int]:
    """The tokens of the second of three rows; the others stay free."""
    mask = grammar.allocate_vocab_mask(width, 3, "cpu")
    grammar.fill_vocab_mask(mask, 1)
    logits = torch.zeros((3, width))
    grammar.apply_vocab_mask(logits=logits, vocab_mask=grammar.move_vocab_mask(mask, "cpu"))
    assert logits[0].isfinite().all() and logits[2].isfinite().all()
    getattr(grammar, "grammar", grammar).reset_vocab_mask(mask)  # ReasonerGrammarObject has none
    assert (mask == -1).all()
    return set(logits[1].isfinite().nonzero().flatten().tolist())


def chain(scheduler: Scheduler, one: Request, text: str) -> torch.Tensor:
    """The mask of SGLang's walk along the tokens of `text` as drafts, [1 + tokens, words]."""
    drafts = scheduler.tokenizer.encode(text, add_special_tokens=False)
    nodes = len(drafts) + 1
    children = torch.tensor([*range(1, nodes), -1])
    siblings = torch.full((nodes,), -1)
    width = scheduler.model_config.vocab_size
    mask: torch.Tensor = one.grammar.allocate_vocab_mask(vocab_size=width, batch_size=nodes, device="cpu")
    tokens = torch.tensor([0, *drafts])
    SPECULATION["traverse_tree"](children, siblings, tokens, one.grammar, mask, vocab_size=width)
    return mask


def test_the_plugin_is_offered_once() -> None:
    from sglang.srt import server_args

    plugin.register()
    plugin.register()
    assert server_args.GRAMMAR_BACKEND_CHOICES.count("turnstile") == 1
    assert list(base.GRAMMAR_BACKEND_REGISTRY) == ["turnstile"]


def test_another_interface_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.BaseGrammarObject, "rollback", lambda self, tokens, more: None)
    with pytest.raises(UnknownInterfaceError, match=r"BaseGrammarObject\.rollback"):
        plugin.register()
    monkeypatch.undo()
    monkeypatch.delattr(base.BaseGrammarBackend, "set_token_filter")
    with pytest.raises(UnknownInterfaceError, match=r"BaseGrammarBackend\.set_token_filter"):
        plugin.register()


def test_every_name_that_sglang_reads_on_a_backend_is_there(start: Start) -> None:
    """By SGLang's source: what `ReasonerGrammarBackend` and `GrammarManager` read on a backend."""
    import re

    from tests.sglang.source import source_of

    read = set(
        re.findall(r"self\.grammar_backend\.(\w+)", source_of("sglang/srt/constrained/reasoner_grammar_backend.py"))
    )
    read |= set(re.findall(r"self\.grammar_backend\.(\w+)", source_of("sglang/srt/constrained/grammar_manager.py")))
    assert {"allocate_vocab_mask", "set_token_filter", "get_cached_or_future_value"} <= read
    backend = start().manager.grammar_backend
    assert not [name for name in read if not hasattr(backend, name)]


@pytest.mark.parametrize("reasoning", [False, True])
def test_what_is_accepted_and_rolled_back_counts_alike(start: Start, reasoning: bool) -> None:
    scheduler = start(parser="qwen3" if reasoning else None)
    grammar = compiled(scheduler, "regex", "ab?c").grammar
    width, [end] = scheduler.model_config.vocab_size, scheduler.end_ids
    rows = []
    for token in scheduler.tokenizer.encode("abc", add_special_tokens=False):
        rows.append(allowed(grammar, width))
        grammar.accept_token(token)
    rows.append(allowed(grammar, width))
    for token in (end, end, 7):  # SGLang's windows go on behind the end
        grammar.accept_token(token)
        assert grammar.is_terminated()
    grammar.rollback(1)
    grammar.rollback(1)
    assert grammar.is_terminated()
    for row in reversed(rows):
        grammar.rollback(1)
        assert not grammar.is_terminated() and allowed(grammar, width) == row


def test_a_draft_leaves_no_trace_and_copies_begin_anew(start: Start) -> None:
    scheduler = start()
    one, again = (compiled(scheduler, "regex", "(ab|ba){9}") for _ in range(2))
    assert type(again.grammar) is type(one.grammar) and again.grammar is not one.grammar
    width = scheduler.model_config.vocab_size
    fresh = allowed(one.grammar, width)
    for _ in range(8):
        before = allowed(one.grammar, width)
        mask = chain(scheduler, one, "abba")
        assert allowed(one.grammar, width) == before
        assert set(np.flatnonzero(np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little"))) == before
        with pytest.raises(ValueError, match="does not allow"):
            one.grammar.accept_token(next(token for token in range(width) if token not in before))
        one.grammar.accept_token(int(scheduler.rng.choice(sorted(before))))
    assert allowed(again.grammar, width) == allowed(one.grammar.copy(), width) == fresh
    assert one.grammar.try_jump_forward(None) is None
    assert again.grammar.grammar_stats.is_cache_hit and again.grammar.grammar_stats.dispatch_type == "regex"


class Limits:
    """Makes automata fail when they visit a new state after `left` more of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        self.step, self.armed = step, False
        from grammar_workers import TokenFSM

        for name in ("next_state", "allowed_mask"):
            real = getattr(TokenFSM, name)

            def limited(fsm: Any, state: int, *token: int, real: Any = real, name: str = name) -> Any:
                if self.armed and name == self.step:
                    raise LimitExceededError("the automaton holds more bytes than it may (fixed limit max_fsm_bytes)")
                return real(fsm, state, *token)

            monkeypatch.setattr(TokenFSM, name, limited)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("step", ["next_state", "allowed_mask"])
@pytest.mark.parametrize("accepted", [0, 2])
def test_a_limit_ends_its_request_and_nothing_else(
    start: Start, monkeypatch: pytest.MonkeyPatch, step: str, accepted: int, reasoning: bool
) -> None:
    scheduler = start(parser="qwen3" if reasoning else None)
    one, other = compiled(scheduler, "ebnf", DEEP), compiled(scheduler, "regex", "[ab]{3}")
    for token in scheduler.tokenizer.encode("(" * 9, add_special_tokens=False)[:accepted]:
        scheduler.commit(one, [token])
    limits = Limits(monkeypatch, step)
    limits.armed = True
    for text in ("(((a)))", "a", ")", "zz"):
        mask = chain(scheduler, one, text)
        assert mask.any(dim=1).all(), "a row that forbids everything makes NaN of probabilities"
    scheduler.commit(one, scheduler.tokenizer.encode("((", add_special_tokens=False))
    limits.armed = False
    assert one.to_finish is not None and "past its limits" in one.to_finish
    # The next request gets an automaton that is not at its limits.
    again = compiled(scheduler, "ebnf", DEEP)
    scheduler.run([other, again], drafts=3)
    assert other.ended and again.ended


def test_a_draft_past_a_limit_costs_nothing_if_it_is_not_taken(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = start()
    one = compiled(scheduler, "ebnf", DEEP)
    limits = Limits(monkeypatch, "next_state")
    limits.armed = True
    chain(scheduler, one, "((((")
    limits.armed = False
    scheduler.run([one], drafts=3)
    assert one.ended and one.to_finish is None


def test_an_output_under_a_real_limit_ends_as_an_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An automaton with hardly any memory: some step of a long output raises, on whichever way."""
    scheduler = start()
    one = compiled(scheduler, "ebnf", DEEP)
    fsm = one.grammar._automaton._fsm
    monkeypatch.setattr(fsm, "_limits", dataclasses.replace(fsm._limits, max_fsm_bytes=1))
    [open_] = scheduler.tokenizer.encode("(", add_special_tokens=False)
    for _ in range(400):
        if one.finished():
            break
        chain(scheduler, one, "((((((a))")
        scheduler.commit(one, [open_])
    assert one.to_finish is not None and "past its limits" in one.to_finish


@pytest.mark.parametrize("reasoning", [False, True])
def test_a_request_that_was_handed_over_accepts_its_first_token_once(start: Start, reasoning: bool) -> None:
    """Disaggregation: the instance that decodes accepts the first token; after a retraction it must not do so again."""
    scheduler = start(parser="qwen3" if reasoning else None)
    one = compiled(scheduler, "regex", "ab")
    one.output_ids = scheduler.tokenizer.encode("a", add_special_tokens=False)
    assert one.grammar.current_token is None
    for _ in range(3):
        prebuilt(one)
        assert one.to_finish is None and one.grammar.current_token == one.output_ids[-1]
    scheduler.run([one])
    assert scheduler.text(one) == "ab"


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("json_schema", '{"properties": {"n": {"type": "strin"}}}', "invalid_grammar: .*at /properties/n/type"),
        ("json_schema", "{", "invalid_grammar: "),
        ("json_schema", '{"x-turnstile": {"colour": 1}}', "invalid_grammar: .*at /json/x-turnstile/colour"),
        ("json_schema", '{"x-turnstile": {"finish_within_budget": true}}', "finish_within_budget"),
        ("regex", "(", "invalid_grammar: "),
        ("ebnf", "turnstile:" + "0" * 64, "grammar_not_found: "),
        ("ebnf", "turnstile:xyz", "no grammar key"),
        ("structural_tag", "{}", "invalid_grammar: "),
    ],
)
@pytest.mark.parametrize("reasoning", [False, True])
def test_refusals_say_why_each_time(start: Start, field: str, text: str, message: str, reasoning: bool) -> None:
    scheduler = start(parser="qwen3" if reasoning else None)
    for _ in range(2):
        one = request(field, text, reasoning=reasoning)
        scheduler.admit([one])
        assert one.to_finish is not None and one.to_finish.startswith("Failed to compile")
        assert is_refusal(one)
        with pytest.raises(RuntimeError, match=message):
            raise RuntimeError(one.to_finish)


@pytest.mark.parametrize("failure", ["nobody answers", "a bug"])
def test_a_failure_of_now_is_no_refusal_for_ever(start: Start, monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    if failure == "nobody answers":
        monkeypatch.setenv("TURNSTILE_URL", "http://127.0.0.1:9")
    scheduler = start(fresh=failure == "nobody answers")
    if failure == "a bug":
        monkeypatch.setattr(scheduler.manager.grammar_backend._decider._loader, "load", lambda key: 1 / 0)  # type: ignore[union-attr]
    for _ in range(2):
        one = request("regex", "a")
        value, known = scheduler.manager.grammar_backend.get_cached_or_future_value(("regex", "a"), False)  # type: ignore[union-attr]
        assert isinstance(value, Future) and not known
        scheduler.admit([one])
        assert one.to_finish is not None
        assert ("did not answer" if failure == "nobody answers" else "ZeroDivisionError") in one.to_finish


def test_masks_are_applied_by_sglangs_kernel_on_a_gpu() -> None:
    """The kernel itself runs in Triton's interpreter (`interpreted.py`), in a process of its own."""
    import subprocess
    import sys

    from deployments.sglang.masks import forbid, mask_kernel

    assert mask_kernel(torch.device("cpu")) is forbid
    assert mask_kernel(torch.device("cuda")).__name__ == "apply_token_bitmask_inplace_triton"
    subprocess.run([sys.executable, "-m", "tests.sglang.interpreted"], check=True, timeout=240)


def test_grammars_made_for_vllm_are_the_ones_here(start: Start) -> None:
    scheduler = start()
    one = compiled(scheduler, "json_schema", json.dumps({"type": "array", "x-turnstile": {"whitespace": "flexible"}}))
    assert isinstance(one.grammar._grammar, RequestGrammar)
    scheduler.run([one])
    assert not one.ended or isinstance(json.loads(scheduler.text(one)), list)
