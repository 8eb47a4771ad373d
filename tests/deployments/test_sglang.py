"""Our grammar backend through SGLang's base classes, called as its scheduler calls them.

The classes are ours to the letter of their signatures; with SGLANG_WHEEL, the path of SGLang's wheel, they are its own.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deployments.sglang import plugin
from deployments.sglang.backend import forbid
from deployments.vllm.interface import UnknownInterfaceError
from grammar_workers.vocabulary.vocabulary import Vocabulary, load_vocabulary
from tests.documents import REPOSITORY

MODEL = str(REPOSITORY / "models" / "turnstile-tiny")
BASE = "sglang.srt.constrained.base_grammar_backend"
WHEEL = os.environ.get("SGLANG_WHEEL")
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "yz"]}}, "required": ["a"]})

SOURCE = """
from concurrent.futures import ThreadPoolExecutor

GRAMMAR_BACKEND_REGISTRY = {}

class BaseGrammarObject:
    def __init__(self):
        self._finished = False
        self.grammar_stats = None
    def maybe_init_reasoning(self, reasoning): ...
    def accept_token(self, token): raise NotImplementedError()
    def rollback(self, k): raise NotImplementedError()
    def is_terminated(self): return False
    def allocate_vocab_mask(self, vocab_size, batch_size, device): raise NotImplementedError()
    def fill_vocab_mask(self, vocab_mask, idx): raise NotImplementedError()
    @staticmethod
    def reset_vocab_mask(vocab_mask): raise NotImplementedError()
    @staticmethod
    def move_vocab_mask(vocab_mask, device): raise NotImplementedError()
    @staticmethod
    def apply_vocab_mask(logits, vocab_mask): raise NotImplementedError()
    def copy(self): return self
    def try_jump_forward(self, tokenizer): raise NotImplementedError()

class InvalidGrammarObject(BaseGrammarObject):
    def __init__(self, error_message="Unknown grammar error"):
        super().__init__()
        self.error_message = error_message

class BaseGrammarBackend:
    def __init__(self):
        self.executor = ThreadPoolExecutor()
        self.cache = {}
    def dispatch_json(self, key_string): ...
    def dispatch_regex(self, key_string): ...
    def dispatch_ebnf(self, key_string): ...
    def dispatch_structural_tag(self, key_string): ...
    def get_cached_or_future_value(self, key, require_reasoning):
        value = self.cache.get(key)
        if value:
            return value.copy(), True
        return self.executor.submit(getattr(self, "dispatch_" + key[0]), key[1]), False
    def set_cache(self, key, value):
        self.cache[key] = value

def register_grammar_backend(name, init_func):
    GRAMMAR_BACKEND_REGISTRY[name] = init_func
"""


def source() -> str:
    if WHEEL is None:
        return SOURCE
    with zipfile.ZipFile(WHEEL) as wheel:
        return wheel.read(BASE.replace(".", "/") + ".py").decode()


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    """SGLang as far as the plugin sees it."""
    choices: list[str] = []
    nothing = SimpleNamespace()
    contents: dict[str, dict[str, Any]] = {
        "sglang.srt.server_args": {
            "GRAMMAR_BACKEND_CHOICES": choices,
            "add_grammar_backend_choices": choices.extend,
            "ServerArgs": nothing,
        },
        "sglang.srt.runtime_context": {
            **dict.fromkeys(("get_context", "get_exec", "get_resources"), lambda: nothing),
            "get_serving": lambda: SimpleNamespace(reasoning_parser=None),
        },
        "sglang.srt.parser.reasoning_parser": {"ReasoningParser": nothing},
        BASE: {},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, content in contents.items():
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                package = ".".join(parts[:depth])
                if package not in sys.modules:
                    patch.setitem(sys.modules, package, ModuleType(package))
                    if depth > 1:
                        setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[package])
            sys.modules[name].__dict__.update(content)
        exec(compile(source(), BASE, "exec"), sys.modules[BASE].__dict__)
        yield SimpleNamespace(base=sys.modules[BASE], choices=choices)


@pytest.fixture(scope="module")
def backend(modules: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    plugin.register()
    arguments = SimpleNamespace(tokenizer_path=None, model_path=MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNSTILE_STORE", f"file://{tmp_path_factory.mktemp('store')}")
        made = modules.base.GRAMMAR_BACKEND_REGISTRY["turnstile"](arguments, None, vocabulary().size + 40, None)
    yield made
    made.executor.shutdown()


@functools.cache
def vocabulary() -> Vocabulary:
    return load_vocabulary(MODEL)


def compiled(backend: Any, kind: str, text: str) -> Any:
    """As `GrammarManager` gets a grammar and keeps it."""
    value, known = backend.get_cached_or_future_value((kind, text), False)
    if not known:
        assert isinstance(value, Future)
        value = value.result(60)
        backend.set_cache((kind, text), value.copy())
    return value


def allowed(grammar: Any, tokens: int) -> set[int]:
    """As a batch of three applies its mask; the rows of the others stay as they are."""
    mask = grammar.allocate_vocab_mask(vocab_size=tokens, batch_size=3, device="cpu")
    grammar.fill_vocab_mask(mask, 1)
    logits = torch.zeros((3, tokens))
    grammar.apply_vocab_mask(logits=logits, vocab_mask=grammar.move_vocab_mask(mask, "cpu"))
    assert logits[0].isfinite().all() and logits[2].isfinite().all()
    grammar.reset_vocab_mask(mask)
    assert (mask == -1).all()
    return set(logits[1].isfinite().nonzero().flatten().tolist())


def test_it_is_offered_once(modules: Any) -> None:
    plugin.register()
    plugin.register()
    assert modules.choices == ["turnstile"] and list(modules.base.GRAMMAR_BACKEND_REGISTRY) == ["turnstile"]


def test_another_interface_is_refused_by_name(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules.base.BaseGrammarObject, "rollback", lambda self, tokens, more: None)
    with pytest.raises(UnknownInterfaceError, match=r"BaseGrammarObject\.rollback"):
        plugin.register()
    monkeypatch.undo()
    monkeypatch.delattr(modules.base.BaseGrammarBackend, "dispatch_ebnf")
    with pytest.raises(UnknownInterfaceError, match=r"BaseGrammarBackend\.dispatch_ebnf"):
        plugin.register()


def test_a_grammar_is_followed_with_drafts_and_copies(backend: Any) -> None:
    known, tokens = vocabulary(), vocabulary().size + 40
    grammar = compiled(backend, "json", SCHEMA)
    again = compiled(backend, "json", SCHEMA)
    assert again is not grammar and type(again) is type(grammar)
    rng = np.random.default_rng(0)
    output: list[int] = []
    while not grammar.is_terminated():
        before = allowed(grammar, tokens)
        assert before and max(before) < known.size
        # A draft, the row behind it, and back, as a tree of drafts is walked.
        draft = int(rng.choice(sorted(before)))
        grammar.accept_token(draft)
        if not grammar.is_terminated():
            allowed(grammar, tokens)
        grammar.rollback(1)
        assert allowed(grammar, tokens) == before
        with pytest.raises(ValueError, match="does not allow"):
            grammar.accept_token(next(token for token in range(known.size) if token not in before))
        grammar.accept_token(draft)
        output.append(draft)
    grammar.accept_token(7)  # what comes in the same step counts for nothing
    assert grammar.is_terminated() and not again.is_terminated()
    text = b"".join(known.token_bytes(token) for token in output if token not in known.eos_token_ids)
    assert json.loads(text)["a"] in ("x", "yz")
    assert allowed(again, tokens) == allowed(grammar.copy(), tokens)
    assert grammar.try_jump_forward(None) is None


@pytest.mark.parametrize(
    ("kind", "text", "first"),
    [
        ("regex", "[xy]{2}", b"x"),
        ("ebnf", 'root ::= "x" root | "y"', b"y"),
        ("json", "$$ANY$$", b"{"),
        ("json", json.dumps({"type": "array", "x-turnstile": {"whitespace": "flexible"}}), b"["),
    ],
)
def test_kinds_of_constraints(backend: Any, kind: str, text: str, first: bytes) -> None:
    rows = allowed(compiled(backend, kind, text), vocabulary().size)
    assert first[0] in {vocabulary().token_bytes(token)[0] for token in rows if vocabulary().token_bytes(token)}


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json", '{"properties": {"n": {"type": "strin"}}}', "invalid_grammar: .*at /properties/n/type"),
        ("json", "{", "invalid_grammar: "),
        ("json", '{"x-turnstile": {"colour": 1}}', "invalid_grammar: .*at /json/x-turnstile/colour"),
        ("json", '{"x-turnstile": {"finish_within_budget": true}}', "finish_within_budget"),
        ("regex", "(", "invalid_grammar: "),
        ("ebnf", "turnstile:" + "0" * 64, "grammar_not_found: "),
        ("structural_tag", "{}", "invalid_grammar: "),
    ],
)
def test_refusals_say_why(backend: Any, modules: Any, kind: str, text: str, message: str) -> None:
    refused = compiled(backend, kind, text)
    assert isinstance(refused, modules.base.InvalidGrammarObject)
    with pytest.raises(RuntimeError, match=message):
        raise RuntimeError(refused.error_message)


def test_nobody_to_compile_is_no_refusal_for_ever(modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TURNSTILE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TURNSTILE_STORE", f"file://{tmp_path}")
    plugin.register()
    arguments = SimpleNamespace(tokenizer_path=MODEL, model_path="")
    made = modules.base.GRAMMAR_BACKEND_REGISTRY["turnstile"](arguments, None, 2000, {0})
    for _ in range(2):
        value, known = made.get_cached_or_future_value(("regex", "a"), False)
        assert not known and "did not answer" in value.result(30).error_message
        made.set_cache(("regex", "a"), value.result().copy())


@pytest.mark.parametrize(("parser", "ends", "wrapped"), [(None, [5], False), ("r1", [5], True), ("r1", [], False)])
def test_thoughts_are_left_free(
    modules: Any, monkeypatch: pytest.MonkeyPatch, parser: str | None, ends: list[int], wrapped: bool
) -> None:
    reasoner = ModuleType("reasoner")
    reasoner.ReasonerGrammarBackend = lambda *given, **settings: (given, settings)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.constrained.reasoner_grammar_backend", reasoner)
    detector = SimpleNamespace(get_think_end_token_ids=lambda tokenizer: ends)
    reader = SimpleNamespace(detector=detector)
    monkeypatch.setattr("sglang.srt.parser.reasoning_parser.ReasoningParser", lambda **settings: reader)
    serving = SimpleNamespace(reasoning_parser=parser, enable_strict_thinking=True)
    monkeypatch.setattr("sglang.srt.runtime_context.get_serving", lambda: serving)
    monkeypatch.setattr("deployments.sglang.backend.open_backend", lambda *given: "ours")
    plugin.register()
    arguments = SimpleNamespace(tokenizer_path=MODEL, model_path="")
    made = modules.base.GRAMMAR_BACKEND_REGISTRY["turnstile"](arguments, "tokenizer", 2000, {0})
    assert made == ((("ours", reader, "tokenizer"), {"enable_strict_thinking": True}) if wrapped else "ours")


def test_masks_forbid_by_bits() -> None:
    rng = np.random.default_rng(1)
    for tokens in (1, 31, 32, 33, 100):
        bits = rng.integers(0, 2, (4, 128)).astype(bool)
        mask = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
        logits = torch.ones((4, tokens), dtype=torch.bfloat16)
        forbid(logits, mask)
        assert (logits.isfinite().numpy() == bits[:, :tokens]).all()
