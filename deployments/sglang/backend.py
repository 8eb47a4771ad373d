"""Grammar backend that SGLang's scheduler calls. It compiles or rejects the constraint of a request."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from deployments.sglang.grammar import SharedAutomaton, grammar_class
from deployments.sglang.masks import MaskMethods, set_token_filter
from deployments.sglang.ranks import Ranks
from deployments.sglang.tags import read_tag
from deployments.vllm.admission import Admission
from deployments.vllm.compilers import CompilerBusyError
from deployments.vllm.requests import CONSTRAINTS, OPTIONS
from deployments.vllm.settings import PluginSettings, read_settings
from gpu_workers.request import RequestError
from gpu_workers.vllm.backend import GrammarLoader
from gpu_workers.vllm.reference import Reference
from grammar_workers import TokenFSM, Vocabulary, warm_up
from grammar_workers.errors import GrammarError
from grammar_workers.logs import get_logger
from grammar_workers.vocabulary.vocabulary import load_vocabulary

logger = get_logger("sglang.turnstile")

# JSON Schema by which SGLang represents `json_object`.
_ANY_OBJECT = "$$ANY$$"
_READY, _REFUSED, _LATER = "ready", "refused", "later"


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of the compilation of one constraint: a compiled grammar or a rejection.

    Attributes:
        status: `ready`: the constraint is compiled. `refused`: the constraint is invalid or unsupported. `later`: the
            constraint could not be compiled now, for example because all compilers are busy. A later attempt may
            succeed.
        text: If the status is `ready`: `turnstile:KEY`, the reference to the compiled grammar. Otherwise the reason of
            the rejection.
        fsm: If the status is `ready`: the automaton that computes masks. Otherwise None.
    """

    status: str
    text: str
    fsm: TokenFSM | None = None

    def to_bytes(self) -> bytes:
        """Return this decision as bytes for other processes. The bytes include the automaton, if there is one.

        `from_bytes` is the inverse.
        """
        head = json.dumps([self.status, self.text]).encode()
        return head + b"\n" + (self.fsm.to_bytes() if self.fsm else b"")

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary) -> Decision:
        """Return the decision that `to_bytes` has encoded.

        Args:
            data: The bytes. Empty: the process that compiles has canceled the call. The decision then has the status
                `later`.
            vocabulary: Vocabulary of the model, for the automaton.
        """
        head, _, artifact = data.partition(b"\n")
        status, text = json.loads(head or json.dumps([_LATER, "canceled"]))
        return cls(status, text, TokenFSM.from_bytes(artifact, vocabulary) if artifact else None)


class Decider:
    """Compiles or rejects the constraints of requests in one of SGLang's scheduler processes.

    If several scheduler processes (*ranks*) run the same batches, only the first rank compiles constraints, and the
    other ranks receive its decisions. In a process that compiles, the constructor blocks until the compilers are ready.

    Args:
        model: Folder or Hugging Face ID of the model or of its tokenizer.
        settings: Settings of the plugin, from environment variables.
        ranks: Membership of this process in the group of ranks. None: this process runs its batches alone.
    """

    def __init__(self, model: str, settings: PluginSettings, ranks: Ranks | None) -> None:
        self._vocabulary = load_vocabulary(model, trust_remote_code=settings.trust_remote_code)
        self._ranks = ranks
        warm_up(self._vocabulary)
        if ranks is None or ranks.leads:
            self._admission = Admission(model, settings)
            self._admission.wait_ready()
            self._loader = GrammarLoader(self._vocabulary, settings.store)

    def decide(self, field: str, value: Any) -> Decision:
        """Compile a constraint, and block until it is compiled or rejected.

        All ranks (scheduler processes that run the same batches) get equal decisions. An error of the compilation is
        not raised: it becomes a decision with the status `refused` or `later`.

        Args:
            field: Kind of constraint: a field of vLLM's `StructuredOutputsParams`, such as `json` or `regex`.
            value: Value of the field, such as the text of the JSON Schema.

        Returns:
            The decision. Its status is `ready` (with the automaton), `refused` or `later` (both with the reason).
        """
        if self._ranks is None:
            return self._compile(field, value)
        # All ranks, the first included, load the same artifact, so that they reach limits at the same token.
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
            # An exception would be cached by SGLang as the result of this constraint.
            logger.exception("grammar failed")
            return Decision(_LATER, f"internal_error: {error!r}")


def open_backend(
    base: Any, model: str, vocab_size: int, eos_token_ids: Collection[int] | int | None, ranks: Ranks | None = None
) -> Any:
    """Create Turnstile's grammar backend for SGLang, and block until its compilers are ready.

    The settings come from the environment variables `TURNSTILE_...`. `ValueError` is raised if one of them is invalid.

    Args:
        base: SGLang's module `base_grammar_backend`.
        model: Folder or Hugging Face ID of the model or of its tokenizer.
        vocab_size: Width V of the logits.
        eos_token_ids: Token IDs that end an output. None or empty: the end tokens of the tokenizer.
        ranks: Membership of this process in the group of scheduler processes that run the same batches. None: this
            process runs its batches alone.

    Returns:
        An instance of a subclass of SGLang's `BaseGrammarBackend`.
    """
    # A token budget belongs to one request, but SGLang requests a grammar once for all requests with the constraint.
    settings = read_settings().model_copy(update={"finish_within_budget": False})
    ends = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids or ())
    return backend_class(base)(Decider(model, settings, ranks), vocab_size, ends)


class _BackendMethods(MaskMethods):
    """Methods of Turnstile's subclass of SGLang's `BaseGrammarBackend`.

    SGLang calls the methods `dispatch_...` on threads, and caches the grammars and rejections that they return.
    """

    is_support_token_filter = True
    set_token_filter = staticmethod(set_token_filter)
    # SGLang's module, and classes that depend on it. `backend_class` sets them.
    sglang: Any
    grammar: Any
    later: Any

    def __init__(self, decider: Decider, tokens: int, ends: Collection[int]) -> None:
        super().__init__()
        self._decider = decider
        self._tokens = tokens
        self._ends = ends

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
            refusal = self.later if decision.status == _LATER else self.sglang.InvalidGrammarObject
            return refusal(decision.text)
        automaton = SharedAutomaton(Reference.parse(decision.text), decision.fsm, self._ends)
        kind = "json" if field == "json_object" else name or field
        return self.grammar(automaton, self._tokens, self.sglang.GrammarStats(dispatch_type=kind))


def backend_class(base: Any) -> Any:
    """Create Turnstile's subclass of SGLang's `BaseGrammarBackend`.

    The class is created in a function, so that this module can be imported without SGLang.

    Args:
        base: SGLang's module `base_grammar_backend`.

    Returns:
        The class. Arguments of its constructor: a `Decider`, the width V of the logits, and the token IDs that end an
        output (empty: the end tokens of the tokenizer).
    """

    class Later(base.InvalidGrammarObject):
        """Rejection for now. SGLang caches it and, because it is false, tries the constraint again."""

        def __bool__(self) -> bool:
            return False

    class Backend(_BackendMethods, base.BaseGrammarBackend):
        """Grammar backend of SGLang that compiles with a `Decider`."""

        sglang = base
        grammar = grammar_class(base)
        later = Later

    return Backend
