"""The pipeline: specification -> pushdown automaton (`languages.combine` knows every front end) -> TokenFSM."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grammar_workers.budget import Budget, limits_at, running
from grammar_workers.costs import with_change
from grammar_workers.errors import LimitExceededError, UnsatisfiableError
from grammar_workers.gc_control import collector_pause, skip_what_exists
from grammar_workers.keys import canonical_bytes, content_key, normalized, parse_specification
from grammar_workers.languages.banned_words import banned_words
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.combine import Combination
from grammar_workers.languages.compilation import Compilation
from grammar_workers.languages.json_schema.read.formats import FORMATS
from grammar_workers.languages.json_schema.solve import number_dfa
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.matching.cfg_recognizer import CfgRecognizer
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.matching.kernels.ahead import compile_kernels
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.recognizer import Recognizer
from grammar_workers.matching.token_fsm import TokenFSM
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.specification import GrammarSpecification
from grammar_workers.vocabulary.vocabulary import Vocabulary


class _Count:
    """A number that threads may raise at the same time."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self.value += 1


_compilations = _Count()


def compilations() -> int:
    """How many grammars this process has begun to compile since it started."""
    return _compilations.value


def compile_grammar(
    specification: GrammarSpecification | Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    options: GrammarOptions = GrammarOptions(),  # noqa: B008 - immutable
    limits: Limits = Limits(),  # noqa: B008 - immutable
    resources: Mapping[str, Any] = MappingProxyType({}),
) -> TokenFSM:
    """Compile a specification (a model or plain data) for one vocabulary.

    `resources` maps URIs to the schemas that `$ref` may name beside the document itself; nothing is ever downloaded.

    Raises `GrammarError`: InvalidSpecificationError when it is malformed, UnsupportedFeatureError when it cannot be
    honoured exactly, UnsatisfiableError when nothing matches, LimitExceededError when a budget does not suffice.
    """
    _compilations.add()
    with collector_pause, running(budget := Budget(limits)):
        try:
            fsm = _compiled(specification, vocabulary, options, limits, resources)
        except LimitExceededError as error:
            raise with_change(error, dict(specification)) from None
        fsm.costs = budget.seconds
        return fsm


def _compiled(
    specification: GrammarSpecification | Mapping[str, Any],
    vocabulary: Vocabulary,
    options: GrammarOptions,
    limits: Limits,
    resources: Mapping[str, Any],
) -> TokenFSM:
    """A function of its own: what it holds is freed before the garbage collector may look at it."""
    with limits_at(pointer=""):
        content = canonical_bytes(
            parse_specification(specification),
            limits.max_specification_bytes,
            strict=options.on_unsupported == "refuse",
        )
        try:
            compilation = Compilation(vocabulary, resources, options, limits)
            automaton = Combination(compilation).pushdown(normalized(content))
        except RecursionError:
            raise LimitExceededError(
                f"specifications or their references nest too deeply (fixed limit max_nesting {limits.max_nesting})"
            ) from None
    key = content_key(content, vocabulary.fingerprint, options, resources)
    recognizer: Recognizer
    if isinstance(automaton, RuleGraph):
        recognizer = CfgRecognizer(automaton, vocabulary, limits)
    elif len(automaton.distinct):
        recognizer = DistinctRecognizer(automaton, vocabulary, limits)
    else:
        recognizer = PushdownRecognizer(automaton, vocabulary, limits)
    return TokenFSM(recognizer, vocabulary, key, compilation.notes, limits, unenforced=compilation.unenforced)


def warm_up(vocabulary: Vocabulary) -> None:
    """Do once what every first request would otherwise pay for: kernels, the vocabulary's tables, shared automata.

    What exists by then is taken to live as long as the process, and is hidden from the garbage collector: a full
    collection would walk through all modules and the vocabulary in the middle of some compilation or step.
    """
    for _ in compile_kernels():
        pass
    number_dfa.any_number()
    number_dfa.integer()
    # Case folding and word characters are tables over all of Unicode.
    banned_words(["a"], Limits(), whole_words=True)
    # Patterns with negated classes need Python's own tables of digits, letters and spaces.
    compile_regex(r"\D\W\S", search=False, limits=Limits())
    properties = {
        "text": {"type": "string", "maxLength": 9},
        "number": {"type": "number", "minimum": 1, "maximum": 9},
    }
    recursive = 'root ::= "(" root ")" | [a-z]'
    for specification in (
        {"type": "json_schema", "schema": {"type": "object", "properties": properties}},
        {"type": "json_schema", "schema": {"type": "string", "pattern": "^\\w+$"}},
        {"type": "grammar", "syntax": "gbnf", "text": recursive},
    ):
        with contextlib.suppress(UnsatisfiableError):  # a vocabulary of letters has no JSON
            fsm = compile_grammar(specification, vocabulary)
            fsm.fill_rows(200)
            fsm.materialize(max_states=64)
            for token in fsm.allowed_tokens(fsm.initial_state):
                fsm.next_state(fsm.initial_state, token)
            fsm.shortest_completion(fsm.initial_state)
            TokenFSM.from_bytes(fsm.to_bytes(), vocabulary)
    skip_what_exists()


def warm_up_formats(vocabulary: Vocabulary) -> None:
    """Make the automata of all JSON formats, after `warm_up` and with the same effect on the garbage collector.

    For processes that compile for others: it takes 0.3 s, of which the first schema with a certain format would pay its
    part. Nothing is missing without it.
    """
    properties = {name: {"type": "string", "format": name} for name in FORMATS}
    with contextlib.suppress(UnsatisfiableError):
        compile_grammar({"type": "json_schema", "schema": {"properties": properties}}, vocabulary)
    skip_what_exists()
