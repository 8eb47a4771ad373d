"""Turnstile and its peers behind one small interface, so that benchmarks treat them alike."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.maskbench_conformance import explanation
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import GrammarError, GrammarOptions, TokenFSM, compile_grammar, warm_up, warm_up_formats


class RefusedError(Exception):
    """The engine does not compile this schema; the message is its reason."""


class Session(Protocol):
    """One compiled schema, and one text under it at a time."""

    def begin(self) -> None:
        """Back to the beginning of a text."""

    def mask(self) -> NDArray[np.uint32]:
        """The mask row of what may follow: bit t % 32 of word t // 32."""

    def advance(self, token_id: int) -> bool:
        """Read a token; whether it was allowed."""

    def may_stop(self) -> bool:
        """Whether the text may end here."""

    def explain(self, value: Any) -> str:
        """Why a valid value is rejected as `json.dumps` writes it; "" when the engine cannot tell."""


class Engine(Protocol):
    """A way to compile JSON Schemas for the Tekken vocabulary."""

    def compile(self, schema: Any) -> Session:
        """Raises RefusedError."""


# -- Turnstile -----------------------------------------------------------------------------------------------------


class TurnstileSession:
    def __init__(self, fsm: TokenFSM, schema: Any) -> None:
        self.fsm = fsm
        self._schema = schema
        self._state = fsm.initial_state

    def begin(self) -> None:
        self._state = self.fsm.initial_state

    def mask(self) -> NDArray[np.uint32]:
        return self.fsm.allowed_mask(self._state)

    def advance(self, token_id: int) -> bool:
        self._state = self.fsm.next_state(self._state, token_id)
        return self._state >= 0

    def may_stop(self) -> bool:
        return self.fsm.is_terminal(self._state)

    def explain(self, value: Any) -> str:
        return explanation(self.fsm, self._schema, value)


class Turnstile:
    def __init__(self, options: dict[str, Any]) -> None:
        self.grammar_options = GrammarOptions(**options)
        self._vocabulary = tekken_vocabulary()
        warm_up(self._vocabulary)
        warm_up_formats(self._vocabulary)

    def compile(self, schema: Any) -> TurnstileSession:
        specification = {"type": "json_schema", "schema": schema}
        try:
            fsm = compile_grammar(specification, self._vocabulary, options=self.grammar_options)
        except GrammarError as error:
            raise RefusedError(f"{type(error).__name__}: {error.message}") from None
        return TurnstileSession(fsm, schema)


# -- llguidance ----------------------------------------------------------------------------------------------------


class LlguidanceSession:
    def __init__(self, matcher: Any, words: int) -> None:
        self._compiled = matcher
        self.matcher = matcher.deep_copy()
        self._row = np.zeros(words, np.uint32)

    def begin(self) -> None:
        # A token that is not allowed leaves an error behind, which `reset` keeps.
        if self.matcher.is_error():
            self.matcher = self._compiled.deep_copy()
        else:
            self.matcher.reset()

    def mask(self) -> NDArray[np.uint32]:
        self.matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        return self._row

    def advance(self, token_id: int) -> bool:
        return bool(self.matcher.consume_token(token_id))

    def may_stop(self) -> bool:
        return bool(self.matcher.is_accepting())

    def explain(self, value: Any) -> str:
        return ""


class Llguidance:
    """Compact separators as `json.dumps` writes them: the mode in which it is fastest and strictest."""

    def __init__(self, options: dict[str, Any]) -> None:
        import llguidance
        from llguidance.tiktoken import lltokenizer_from_encoding

        self._matcher = llguidance.LLMatcher
        self._words = tekken_vocabulary().mask_words
        self.tokenizer = lltokenizer_from_encoding(tekken_encoding(), n_vocab=tekken_vocabulary().size, eos_token=2)

    def compile(self, schema: Any) -> LlguidanceSession:
        defaults = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        return self.session(self._matcher.grammar_from_json_schema(schema, defaults))

    def session(self, grammar: str) -> LlguidanceSession:
        """One text under a grammar of its own notation. Raises RefusedError."""
        matcher = self._matcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RefusedError(matcher.get_error())
        return LlguidanceSession(matcher, self._words)


# -- xgrammar ------------------------------------------------------------------------------------------------------


class XgrammarSession:
    def __init__(self, matcher: Any, words: int) -> None:
        import torch

        self.matcher = matcher
        # Shape [1, words] of int32, as the engine wants it, and the same memory for reading bits.
        self._bitmask = torch.zeros((1, words), dtype=torch.int32)
        self._row = self._bitmask.numpy().view(np.uint32)[0]

    def begin(self) -> None:
        self.matcher.reset()

    def mask(self) -> NDArray[np.uint32]:
        self._row[:] = 0xFFFFFFFF
        self.matcher.fill_next_token_bitmask(self._bitmask, 0)
        return self._row

    def advance(self, token_id: int) -> bool:
        return bool(self.matcher.accept_token(token_id))

    def may_stop(self) -> bool:
        return bool(self.matcher.is_completed())

    def explain(self, value: Any) -> str:
        return ""


class Xgrammar:
    """The library's defaults, on one thread; with the option `comparable` open objects and the separators of others."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        import xgrammar

        torch.set_num_threads(1)
        vocabulary = tekken_vocabulary()
        self._words = vocabulary.mask_words
        self._matcher = xgrammar.GrammarMatcher
        self._comparable = {"any_whitespace": False, "separators": (", ", ": "), "strict_mode": False}
        self._comparable = self._comparable if options.get("comparable") else {}
        # It takes empty strings for special tokens of its own accord only under this name.
        tokens = [vocabulary.token_bytes(i) or f"<SPECIAL_{i}>".encode() for i in range(vocabulary.size)]
        information = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[2])
        self.compiler = xgrammar.GrammarCompiler(information, max_threads=1)

    def compile(self, schema: Any) -> XgrammarSession:
        try:
            return self.session(self.compiler.compile_json_schema(json.dumps(schema), **self._comparable))
        except RuntimeError as error:
            raise RefusedError(str(error)) from None

    def session(self, compiled: Any) -> XgrammarSession:
        """One text under a compiled grammar."""
        return XgrammarSession(self._matcher(compiled), self._words)


ENGINES: dict[str, Callable[[dict[str, Any]], Engine]] = {
    "turnstile": Turnstile,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


def installed(names: list[str]) -> list[str]:
    """Those engines whose package is here; says which ones are not (`pip install '.[bench]'`)."""
    present = [name for name in names if name == "turnstile" or importlib.util.find_spec(name)]
    for name in set(names) - set(present):
        print(f"skipped: {name} is not installed")
    return present
