"""The classes that SGLang calls, over the grammar of one request that vLLM calls, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from deployments.vllm.admission import Admission
from deployments.vllm.compilers import CompilerBusyError
from deployments.vllm.requests import CONSTRAINTS, OPTIONS
from deployments.vllm.settings import read_settings
from gpu_workers.request import RequestError
from gpu_workers.vllm.backend import GrammarLoader, new_bitmask
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.reference import Reference
from grammar_workers import warm_up
from grammar_workers.errors import GrammarError
from grammar_workers.vocabulary.vocabulary import load_vocabulary

_ANY_OBJECT = "$$ANY$$"
"""SGLang's JSON Schema for `json_object`."""


def open_backend(base: Any, model: str, vocab_size: int, eos_token_ids: Collection[int] | int | None) -> Any:
    """A `BaseGrammarBackend` of `base`, SGLang's module, warm. `vocab_size`: the width of the logits."""
    # A budget is the number of one request, and SGLang asks once for all that are constrained alike.
    settings = read_settings().model_copy(update={"finish_within_budget": False})
    vocabulary = load_vocabulary(model, trust_remote_code=settings.trust_remote_code)
    warm_up(vocabulary)
    admission = Admission(model, settings)
    admission.wait_ready()
    ends = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids or ())
    return backend_class(base)(admission, GrammarLoader(vocabulary, settings.store), vocab_size, ends)


def grammar_class(base: Any) -> Any:
    """Our `BaseGrammarObject` of `base`, SGLang's module."""

    class Grammar(base.BaseGrammarObject):
        """One request's grammar; `make` gives a new one of the same kind."""

        def __init__(self, make: Callable[[], RequestGrammar], tokens: int) -> None:
            super().__init__()
            self._make = make
            self._tokens = tokens
            self._grammar = make()

        def accept_token(self, token: int) -> None:
            """Raises ValueError, which SGLang answers for this request alone."""
            if not self.is_terminated() and not self._grammar.accept_tokens("", [token]):
                raise ValueError(f"the grammar does not allow the token {token}")

        def rollback(self, k: int) -> None:
            self._grammar.rollback(k)

        def is_terminated(self) -> bool:
            """Whether the output is complete, which ends it; a grammar that cannot go on refuses its next token."""
            return self._grammar.is_terminated() and not self._grammar.failed

        def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Tensor:
            """int32 [batch_size, words] on the host, everything allowed."""
            return new_bitmask(batch_size, max(vocab_size, self._tokens))

        def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
            self._grammar.fill_bitmask(vocab_mask, idx)

        @staticmethod
        def reset_vocab_mask(vocab_mask: Tensor) -> None:
            vocab_mask.fill_(-1)

        @staticmethod
        def move_vocab_mask(vocab_mask: Tensor, device: Any) -> Tensor:
            return vocab_mask.to(device, non_blocking=True)

        @staticmethod
        def apply_vocab_mask(logits: Tensor, vocab_mask: Tensor) -> None:
            forbid(logits, vocab_mask)

        def copy(self) -> Any:
            return type(self)(self._make, self._tokens)

        def try_jump_forward(self, tokenizer: Any) -> None:
            """Text that must come is not put in: it would have other tokens than the model gives it."""

    return Grammar


def backend_class(base: Any) -> Any:
    """Our `BaseGrammarBackend` of `base`, SGLang's module."""
    grammar = grammar_class(base)

    class _Later(base.InvalidGrammarObject):
        """A refusal of now: SGLang keeps it and, since it is false, asks again."""

        def __bool__(self) -> bool:
            return False

    class Backend(base.BaseGrammarBackend):
        """Compiles through `admission`; SGLang calls it on threads, and keeps what it returns."""

        def __init__(self, admission: Admission, loader: GrammarLoader, tokens: int, ends: Collection[int]) -> None:
            super().__init__()
            self._admission = admission
            self._loader = loader
            self._tokens = tokens
            self._ends = ends

        def dispatch_json(self, key_string: str) -> Any:
            if key_string == _ANY_OBJECT:
                return self._grammar("json_object", True)
            return self._grammar("json", key_string)

        def dispatch_regex(self, key_string: str) -> Any:
            return self._grammar("regex", key_string)

        def dispatch_ebnf(self, key_string: str) -> Any:
            return self._grammar("grammar", key_string)

        def dispatch_structural_tag(self, key_string: str) -> Any:
            return self._grammar("structural_tag", key_string)

        def _grammar(self, field: str, value: Any) -> Any:
            constraint = SimpleNamespace(**dict.fromkeys((*CONSTRAINTS, *OPTIONS)))
            setattr(constraint, field, value)
            try:
                reference = Reference.parse(self._admission.submit(constraint, 0, None).result())
                fsm = self._loader.load(reference.key)
            except (GrammarError, RequestError, CompilerBusyError) as error:
                if isinstance(error, CompilerBusyError):
                    return _Later(f"compiler_busy: {error}")
                return base.InvalidGrammarObject(f"{error.code}: {error}")

            return grammar(functools.partial(RequestGrammar.referred, reference, fsm, self._ends), self._tokens)

    return Backend


def forbid(logits: Tensor, bitmask: Tensor) -> None:
    """Makes logits (float [rows, V], in place) -inf whose bit in `bitmask` (int32 [rows, words]) is not set."""
    places = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    bits = (bitmask.unsqueeze(-1) >> places) & 1
    allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
    logits.masked_fill_(~allowed, float("-inf"))
