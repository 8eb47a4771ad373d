"""Adapters that give Turnstile and other libraries one interface, so that benchmarks treat them alike."""

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
    """A library rejects a schema. The message is the library's reason."""


class Session(Protocol):
    """Interface of a compiled schema with the state of one text."""

    def begin(self) -> None:
        """Reset the state to the beginning of a text."""

    def mask(self) -> NDArray[np.uint32]:
        """Return the mask of the next token, uint32 [words]. Token t has bit t % 32 of word t // 32."""

    def advance(self, token_id: int) -> bool:
        """Accept a token. Return whether it was allowed."""

    def may_stop(self) -> bool:
        """Return whether the text may end in the current state."""

    def explain(self, value: Any) -> str:
        """Return the reason why the library rejects a valid JSON value, serialized by `json.dumps`; "" if unknown."""


class Engine(Protocol):
    """Interface of a library that compiles JSON Schemas for the Tekken vocabulary."""

    def compile(self, schema: Any) -> Session:
        """Compile a JSON Schema, and return a session. RefusedError is raised if the library rejects the schema."""


# -- Turnstile -----------------------------------------------------------------------------------------------------


class TurnstileSession:
    """Session of Turnstile: an automaton and its current state.

    Args:
        fsm: The automaton.
        schema: The JSON Schema from which it was compiled, for `explain`.

    Attributes:
        fsm: The automaton.
    """

    def __init__(self, fsm: TokenFSM, schema: Any) -> None:
        self.fsm = fsm
        self._schema = schema
        self._state = fsm.initial_state

    def begin(self) -> None:
        """Reset to the initial state."""
        self._state = self.fsm.initial_state

    def mask(self) -> NDArray[np.uint32]:
        """Return the mask of the current state, uint32 [words]."""
        return self.fsm.allowed_mask(self._state)

    def advance(self, token_id: int) -> bool:
        """Accept a token. Return whether it was allowed."""
        self._state = self.fsm.next_state(self._state, token_id)
        return self._state >= 0

    def may_stop(self) -> bool:
        """Return whether the text may end here."""
        return self.fsm.is_terminal(self._state)

    def explain(self, value: Any) -> str:
        """Return the policy (such as property order) because of which a valid JSON value is rejected."""
        return explanation(self.fsm, self._schema, value)


class Turnstile:
    """Turnstile as an `Engine`. The constructor loads all kernels and formats.

    Args:
        options: Fields of `GrammarOptions`.

    Attributes:
        grammar_options: The options.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.grammar_options = GrammarOptions(**options)
        self._vocabulary = tekken_vocabulary()
        warm_up(self._vocabulary)
        warm_up_formats(self._vocabulary)

    def compile(self, schema: Any) -> TurnstileSession:
        """Compile a schema for one text at a time. Raises RefusedError if the schema is rejected."""
        specification = {"type": "json_schema", "schema": schema}
        try:
            fsm = compile_grammar(specification, self._vocabulary, options=self.grammar_options)
        except GrammarError as error:
            raise RefusedError(f"{type(error).__name__}: {error.message}") from None
        return TurnstileSession(fsm, schema)


# -- llguidance ----------------------------------------------------------------------------------------------------


class LlguidanceSession:
    """Session of llguidance.

    Args:
        matcher: A matcher, which is copied.
        words: Number of words of a mask.

    Attributes:
        matcher: The copy of the matcher, in the current state.
    """

    def __init__(self, matcher: Any, words: int) -> None:
        self._compiled = matcher
        self.matcher = matcher.deep_copy()
        self._row = np.zeros(words, np.uint32)

    def begin(self) -> None:
        """Reset to the beginning of a text."""
        # A token that is not allowed leaves an error behind, which `reset` keeps.
        if self.matcher.is_error():
            self.matcher = self._compiled.deep_copy()
        else:
            self.matcher.reset()

    def mask(self) -> NDArray[np.uint32]:
        """Return the mask, uint32 [words]; the next call overwrites it."""
        self.matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        return self._row

    def advance(self, token_id: int) -> bool:
        """Accept a token. Return whether it was allowed."""
        return bool(self.matcher.consume_token(token_id))

    def may_stop(self) -> bool:
        """Return whether the text may end here."""
        return bool(self.matcher.is_accepting())

    def explain(self, value: Any) -> str:
        """Return "": llguidance does not explain rejections."""
        return ""


class Llguidance:
    """llguidance as an `Engine`, in its fastest and strictest mode: only the separators `, ` and `: ` are allowed.

    Args:
        options: Not used.

    Attributes:
        tokenizer: Tokenizer of the Tekken vocabulary, for llguidance.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        import llguidance
        from llguidance.tiktoken import lltokenizer_from_encoding

        self._matcher = llguidance.LLMatcher
        self._words = tekken_vocabulary().mask_words
        self.tokenizer = lltokenizer_from_encoding(tekken_encoding(), n_vocab=tekken_vocabulary().size, eos_token=2)

    def compile(self, schema: Any) -> LlguidanceSession:
        """Compile a schema for one text at a time. Raises RefusedError if the schema is rejected."""
        defaults = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        return self.session(self._matcher.grammar_from_json_schema(schema, defaults))

    def session(self, grammar: str) -> LlguidanceSession:
        """Return a session of a grammar in llguidance's notation.

        Args:
            grammar: The grammar.

        Returns:
            The session.

        Raises:
            RefusedError: llguidance rejects the grammar.
        """
        matcher = self._matcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RefusedError(matcher.get_error())
        return LlguidanceSession(matcher, self._words)


# -- xgrammar ------------------------------------------------------------------------------------------------------


class XgrammarSession:
    """Session of xgrammar.

    Args:
        matcher: A matcher. The session advances it.
        words: Number of words of a mask.

    Attributes:
        matcher: The matcher, in the current state.
    """

    def __init__(self, matcher: Any, words: int) -> None:
        import torch

        self.matcher = matcher
        # Shape [1, words] of int32, as the engine wants it, and the same memory for reading bits.
        self._bitmask = torch.zeros((1, words), dtype=torch.int32)
        self._row = self._bitmask.numpy().view(np.uint32)[0]

    def begin(self) -> None:
        """Reset to the beginning of a text."""
        self.matcher.reset()

    def mask(self) -> NDArray[np.uint32]:
        """Return the mask, uint32 [words]; the next call overwrites it."""
        self._row[:] = 0xFFFFFFFF
        self.matcher.fill_next_token_bitmask(self._bitmask, 0)
        return self._row

    def advance(self, token_id: int) -> bool:
        """Accept a token. Return whether it was allowed."""
        return bool(self.matcher.accept_token(token_id))

    def may_stop(self) -> bool:
        """Return whether the text may end here."""
        return bool(self.matcher.is_completed())

    def explain(self, value: Any) -> str:
        """Return "": xgrammar does not explain rejections."""
        return ""


class Xgrammar:
    """xgrammar as an `Engine`, with its default options, on one thread.

    Args:
        options: `{"comparable": True}`: additional properties are allowed, and only the separators `, ` and `: `, as
            for the other libraries. Empty: xgrammar's default options.

    Attributes:
        compiler: The grammar compiler of xgrammar.
    """

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
        """Compile a schema for one text at a time. Raises RefusedError if the schema is rejected."""
        try:
            return self.session(self.compiler.compile_json_schema(json.dumps(schema), **self._comparable))
        except RuntimeError as error:
            raise RefusedError(str(error)) from None

    def session(self, compiled: Any) -> XgrammarSession:
        """Return a session of a grammar that xgrammar has compiled."""
        return XgrammarSession(self._matcher(compiled), self._words)


ENGINES: dict[str, Callable[[dict[str, Any]], Engine]] = {
    "turnstile": Turnstile,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


def installed(names: list[str]) -> list[str]:
    """Return the names of the libraries that are installed. Print the names of the others.

    `pip install '.[bench]'` installs all of them.

    Args:
        names: Keys of `ENGINES`.
    """
    present = [name for name in names if name == "turnstile" or importlib.util.find_spec(name)]
    for name in set(names) - set(present):
        print(f"skipped: {name} is not installed")
    return present
