"""Compilation of a specification (constraint) to a `TokenFSM`, an automaton over the tokens of a model.

`languages.combine` parses the specification. It builds a pushdown automaton over bytes, or a rule graph for a
context-free grammar. A recognizer runs this automaton over the tokens of the vocabulary. A `TokenFSM` numbers the
states and caches their token masks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grammar_workers.budget import Budget, limits_at, running
from grammar_workers.costs import most_expensive, with_change
from grammar_workers.counters import Counters
from grammar_workers.errors import LimitExceededError, UnsatisfiableError
from grammar_workers.gc_control import collector_pause, skip_what_exists
from grammar_workers.keys import canonical_bytes, content_key, normalized, parse_specification
from grammar_workers.languages.banned_words import banned_words
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.combine import Combination
from grammar_workers.languages.compilation import Compilation
from grammar_workers.languages.json_schema.read.formats import STRING_FORMATS
from grammar_workers.languages.json_schema.solve import number_dfa
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.matching.cfg_recognizer import CfgRecognizer
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.matching.kernels.compile_all import compile_kernels
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.recognizer import Recognizer
from grammar_workers.matching.token_fsm import TokenFSM
from grammar_workers.numba_options import CALLED
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.specification import GrammarSpecification
from grammar_workers.types import GrammarKey
from grammar_workers.vocabulary.vocabulary import Vocabulary

_COUNTERS = Counters()
_COMPILATIONS = "compilations"


def compilations() -> int:
    """Return the number of calls of `compile_grammar` in this process so far, failed calls included."""
    return _COUNTERS.snapshot().get(_COMPILATIONS, 0)


def compile_grammar(
    specification: GrammarSpecification | Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    options: GrammarOptions = GrammarOptions(),  # noqa: B008 - immutable
    limits: Limits = Limits(),  # noqa: B008 - immutable
    resources: Mapping[str, Any] = MappingProxyType({}),
) -> TokenFSM:
    """Compile a specification (constraint of an output) for one vocabulary to an automaton over tokens.

    Errors are subclasses of `GrammarError`:

    - InvalidSpecificationError: the specification is malformed.
    - UnsupportedFeatureError: the specification cannot be enforced exactly.
    - UnsatisfiableError: no output matches the specification.
    - LimitExceededError: the compilation exceeds a limit in `limits`.

    Args:
        specification: The constraint, as a typed model or as plain data with `type`.
        vocabulary: Tokens of the model.
        options: Options for the format of the output.
        limits: Limits of the compilation and of the automaton.
        resources: URI -> JSON Schema to which `$ref` with this URI refers. Nothing is downloaded.

    Returns:
        The automaton, whose states have token masks. The attribute `notes` has the warnings, and `costs` the CPU
        seconds by part of the specification.
    """
    _COUNTERS.add(_COMPILATIONS)
    with collector_pause, running(budget := Budget(limits)):
        try:
            fsm = _compiled(specification, vocabulary, options, limits, resources)
        except LimitExceededError as error:
            advised = with_change(error, dict(specification))
            try:
                raise advised from None
            finally:
                # The traceback refers to this frame, and so to everything that the compilation has made.
                del advised
        fsm.costs = budget.seconds
        return fsm


def _compiled(
    specification: GrammarSpecification | Mapping[str, Any],
    vocabulary: Vocabulary,
    options: GrammarOptions,
    limits: Limits,
    resources: Mapping[str, Any],
) -> TokenFSM:
    """Compile a specification. What this function holds is freed before the garbage collector runs again."""
    with limits_at(pointer=""):
        content = canonical_bytes(
            parse_specification(specification),
            limits.max_specification_bytes,
            strict=options.on_unsupported == "reject",
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
    # With `uniqueItems` and a short `enum` of items, the states of the automaton distinguish the sets of used values.
    # Then `distinct` is empty, and a PushdownRecognizer runs the automaton.
    elif len(automaton.distinct):
        recognizer = DistinctRecognizer(automaton, vocabulary, limits)
    else:
        recognizer = PushdownRecognizer(automaton, vocabulary, limits)
    return TokenFSM(recognizer, vocabulary, key, compilation.notes, limits, unenforced=compilation.unenforced)


def compile_artifact(
    key: GrammarKey, specification: dict[str, Any], vocabulary: Vocabulary, options: GrammarOptions, owner: str = ""
) -> bytes:
    """Compile a specification, compute the first mask, and return the artifact (compiled grammar) for a store.

    The errors of `compile_grammar` are raised.

    Args:
        key: Grammar key of the specification, the vocabulary and the options.
        specification: The constraint as plain data with `type`.
        vocabulary: Tokens of the model.
        options: Options for the format of the output.
        owner: Tenant that may remove the artifact from the store of a cluster. Empty: no tenant.

    Returns:
        The artifact as bytes. Its details are the owner, the durations in seconds, the memory in bytes and the most
        expensive parts of the specification.

    Raises:
        ValueError: `key` belongs to another specification, vocabulary, version of the compiler, or other options.
    """
    started = time.monotonic()
    fsm = compile_grammar(specification, vocabulary, options=options)
    if fsm.key != key:
        raise ValueError(f"the specification's key is {fsm.key}, not {key}: other vocabulary, options or version")
    compiled = time.monotonic()
    fsm.allowed_mask(fsm.initial_state)
    details = {
        "owner": owner,
        "compile_seconds": round(compiled - started, 6),
        "first_mask_seconds": round(time.monotonic() - compiled, 6),
        "memory_bytes": fsm.nbytes,
        "costs": most_expensive(fsm.costs, specification),
    }
    return fsm.to_bytes(details)


def warm_up(vocabulary: Vocabulary) -> None:
    """Prepare this process, so that the first request is not slow: load kernels, tables and shared automata.

    Kernels are functions that numba compiles. If they are not in the cache on disk, this call compiles them. At the
    end, all existing objects are excluded from garbage collection, because most live as long as the process. Otherwise
    a full collection during a compilation or an engine step would traverse all modules and the vocabulary.

    Args:
        vocabulary: Tokens of the model. Its tables are computed and stored in it.
    """
    for _ in compile_kernels():
        pass
    # numba loads a kernel from the cache at the first call, which takes 2 to 8 ms.
    for kernel, arguments in CALLED:
        kernel.compile(arguments)
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
            fsm.prefetch_masks(200)
            fsm.materialize(max_states=64)
            for token in fsm.allowed_tokens(fsm.initial_state):
                fsm.next_state(fsm.initial_state, token)
            fsm.shortest_completion(fsm.initial_state)
            TokenFSM.from_bytes(fsm.to_bytes(), vocabulary)
    skip_what_exists()


def warm_up_formats(vocabulary: Vocabulary) -> None:
    """Build the automata of all JSON Schema formats in advance. Call this after `warm_up`, in compile processes.

    The call takes 0.3 s. Without it, the first schema with a format takes a part of that time. At the end, all existing
    objects are excluded from garbage collection.

    Args:
        vocabulary: Tokens of the model.
    """
    properties = {name: {"type": "string", "format": name} for name in STRING_FORMATS}
    with contextlib.suppress(UnsatisfiableError):
        compile_grammar({"type": "json_schema", "schema": {"properties": properties}}, vocabulary)
    skip_what_exists()
