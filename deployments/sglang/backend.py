"""The grammar backend that SGLang calls: constraint -> grammar of one request, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from deployments.sglang.grammar import SharedAutomaton, grammar_class
from deployments.sglang.masks import apply_vocab_mask, set_token_filter
from deployments.sglang.ranks import Ranks
from deployments.sglang.tags import read_tag
from deployments.vllm.admission import Admission
from deployments.vllm.compilers import CompilerBusyError
from deployments.vllm.requests import CONSTRAINTS, OPTIONS
from deployments.vllm.settings import PluginSettings, read_settings
from gpu_workers.request import RequestError
from gpu_workers.vllm.backend import GrammarLoader, new_bitmask
from gpu_workers.vllm.reference import Reference
from grammar_workers import TokenFSM, Vocabulary, warm_up
from grammar_workers.errors import GrammarError
from grammar_workers.logs import get_logger
from grammar_workers.vocabulary.vocabulary import load_vocabulary

logger = get_logger("sglang.turnstile")

_ANY_OBJECT = "$$ANY$$"
"""SGLang's JSON Schema for `json_object`."""
_READY, _REFUSED, _LATER = "ready", "refused", "later"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a constraint.

    `text`: the reference of a grammar that is ready, otherwise the reason. A grammar that is refused for now (`later`)
    may be asked for again. `fsm`: the automaton of a grammar that is ready.
    """

    status: str
    text: str
    fsm: TokenFSM | None = None

    def to_bytes(self) -> bytes:
        """Return the decision with the artifact, for other ranks."""
        head = json.dumps([self.status, self.text]).encode()
        return head + b"\n" + (self.fsm.to_bytes() if self.fsm else b"")

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary) -> Decision:
        """Return the inverse of `to_bytes`; of a call that was canceled, a refusal for now."""
        head, _, artifact = data.partition(b"\n")
        status, text = json.loads(head or json.dumps([_LATER, "canceled"]))
        return cls(status, text, TokenFSM.from_bytes(artifact, vocabulary) if artifact else None)


class Decider:
    """Decides about constraints: compiles, or reads what the first rank of `ranks` has decided."""

    def __init__(self, model: str, settings: PluginSettings, ranks: Ranks | None) -> None:
        self._vocabulary = load_vocabulary(model, trust_remote_code=settings.trust_remote_code)
        self._ranks = ranks
        warm_up(self._vocabulary)
        if ranks is None or ranks.leads:
            self._admission = Admission(model, settings)
            self._admission.wait_ready()
            self._loader = GrammarLoader(self._vocabulary, settings.store)

    def decide(self, field: str, value: Any) -> Decision:
        """Return the decision about a field of vLLM's `StructuredOutputsParams`. The same in all ranks."""
        if self._ranks is None:
            return self._compile(field, value)
        # All ranks, the first included, begin with the same automaton: it reaches its limits at the same token.
        decision = self._ranks.agree(lambda: self._compile(field, value).to_bytes())
        return Decision.from_bytes(decision, self._vocabulary)

    def _compile(self, field: str, value: Any) -> Decision:
        constraint = SimpleNamespace(**dict.fromkeys((*CONSTRAINTS, *OPTIONS)))
        setattr(constraint, field, value)
        try:
            reference = Reference.parse(self._admission.submit(constraint, 0, None).result())
            fsm = self._loader.load(reference.key)
            return Decision(_READY, str(reference), fsm)
        except (GrammarError, RequestError) as error:
            return Decision(_REFUSED, f"{error.code}: {error}")
        except CompilerBusyError as error:
            return Decision(_LATER, f"compiler_busy: {error}")
        except Exception as error:
            # SGLang would keep it as the answer to this constraint.
            logger.exception("failed to make a grammar")
            return Decision(_LATER, f"internal_error: {error!r}")


def open_backend(
    base: Any, model: str, vocab_size: int, eos_token_ids: Collection[int] | int | None, ranks: Ranks | None = None
) -> Any:
    """Return a `BaseGrammarBackend` of `base`, SGLang's module, that is ready for requests.

    Args:
        base: SGLang's module `base_grammar_backend`.
        model: Folder or name of the model or of its tokenizer.
        vocab_size: Width of the logits.
        eos_token_ids: Tokens that end an output. None: those of the tokenizer.
        ranks: This process's part among the schedulers that run the same batches. None: it runs them alone.
    """
    # A budget is the number of one request, and SGLang asks once for all that are constrained alike.
    settings = read_settings().model_copy(update={"finish_within_budget": False})
    ends = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids or ())
    return backend_class(base)(Decider(model, settings, ranks), vocab_size, ends)


def backend_class(base: Any) -> Any:
    """Return our `BaseGrammarBackend` of `base`, SGLang's module."""
    grammar = grammar_class(base)

    class _Later(base.InvalidGrammarObject):
        """A refusal for now: SGLang keeps it and, since it is false, asks again."""

        def __bool__(self) -> bool:
            return False

    class Backend(base.BaseGrammarBackend):
        """SGLang calls `dispatch_...` on threads, and keeps the results."""

        is_support_token_filter = True
        set_token_filter = staticmethod(set_token_filter)
        # A reasoning request without a constraint has no grammar object, only these.
        move_vocab_mask = staticmethod(grammar.move_vocab_mask)
        apply_vocab_mask = staticmethod(apply_vocab_mask)

        def __init__(self, decider: Decider, tokens: int, ends: Collection[int]) -> None:
            super().__init__()
            self._decider = decider
            self._tokens = tokens
            self._ends = ends

        def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Tensor:
            return new_bitmask(batch_size, max(vocab_size, self._tokens))

        def dispatch_json(self, key_string: str) -> Any:
            if key_string == _ANY_OBJECT:
                return self._grammar("json_object", True)
            return self._grammar("json", key_string)

        def dispatch_regex(self, key_string: str) -> Any:
            return self._grammar("regex", key_string)

        def dispatch_ebnf(self, key_string: str) -> Any:
            return self._grammar("grammar", key_string, "ebnf")

        def dispatch_structural_tag(self, key_string: str) -> Any:
            return self._grammar("structural_tag", read_tag(key_string))

        def _grammar(self, field: str, value: Any, name: str | None = None) -> Any:
            decision = self._decider.decide(field, value)
            if decision.fsm is None:
                refusal = _Later if decision.status == _LATER else base.InvalidGrammarObject
                return refusal(decision.text)
            automaton = SharedAutomaton(Reference.parse(decision.text), decision.fsm, self._ends)
            kind = "json" if field == "json_object" else name or field
            return grammar(automaton, self._tokens, base.GrammarStats(dispatch_type=kind))

    return Backend
