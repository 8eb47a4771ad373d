"""The pipeline: specification -> byte automaton -> TokenFSM. The only place that knows every front end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grammar_workers import number_automaton
from grammar_workers.character_automaton import restrict
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsatisfiableError
from grammar_workers.json_schema.containers import Rule
from grammar_workers.json_schema.emitter import Emitter
from grammar_workers.json_schema.formula import FormulaId, FormulaPool, JsonType
from grammar_workers.json_schema.reader import SchemaReader
from grammar_workers.json_schema.rules import Rules
from grammar_workers.keys import canonical_bytes, grammar_key, parse_specification
from grammar_workers.literal_tree import literal_tree
from grammar_workers.machine import Machine, MachineBuilder
from grammar_workers.machine_walker import MachineWalker
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.regex import compile_regex
from grammar_workers.specification import (
    ChoiceSpecification,
    GrammarSpecification,
    JsonObjectSpecification,
    JsonSchemaSpecification,
    RegexSpecification,
)
from grammar_workers.string_machine import StringMachine
from grammar_workers.token_fsm import TokenFSM
from grammar_workers.vocabulary import Vocabulary


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
    parsed = parse_specification(specification)
    size = len(canonical_bytes(parsed))
    if size > limits.max_specification_bytes:
        raise LimitExceededError(
            f"the specification has {size} bytes, more than {limits.max_specification_bytes} "
            "(limit max_specification_bytes)"
        )
    try:
        machine, notes = _machine(parsed, resources, vocabulary.spellable, options, limits)
    except RecursionError:
        raise LimitExceededError(
            f"the specification nests, or chains references, too deeply (limit max_nesting {limits.max_nesting})"
        ) from None
    key = grammar_key(parsed, vocabulary.fingerprint, options, resources)
    return TokenFSM(MachineWalker(machine, vocabulary, limits), vocabulary, key, notes, limits)


def _machine(
    specification: GrammarSpecification,
    resources: Mapping[str, Any],
    spellable: frozenset[str] | None,
    options: GrammarOptions,
    limits: Limits,
) -> tuple[Machine, list[str]]:
    builder = MachineBuilder(limits)
    notes: list[str] = []
    if isinstance(specification, JsonSchemaSpecification | JsonObjectSpecification):
        pool = FormulaPool()
        if isinstance(specification, JsonSchemaSpecification):
            reader = SchemaReader(specification.json_schema, resources, pool, options, limits)
            root = reader.read()
            notes = reader.notes
        else:
            root = pool.types(JsonType.OBJECT)
        entry = _json_entry(root, pool, builder, spellable, options, limits)
    elif isinstance(specification, RegexSpecification):
        automaton = compile_regex(specification.pattern, search=False, limits=limits)
        if spellable is not None:
            automaton = restrict(automaton, tuple((ord(c), ord(c)) for c in sorted(spellable)))
        if automaton.is_empty:
            raise UnsatisfiableError("no text matches the pattern")
        entry = StringMachine(builder).raw_text(automaton)
    else:
        entry = _choice_entry(specification, builder, spellable)
    return builder.build(entry), notes


def _json_entry(
    root: FormulaId,
    pool: FormulaPool,
    builder: MachineBuilder,
    spellable: frozenset[str] | None,
    options: GrammarOptions,
    limits: Limits,
) -> int:
    rules = Rules(pool, limits, spellable)
    rules.solve(Rule(root))
    return Emitter(rules, builder, options).emit(Rule(root))


def _choice_entry(specification: ChoiceSpecification, builder: MachineBuilder, spellable: frozenset[str] | None) -> int:
    choices = []
    for index, choice in enumerate(dict.fromkeys(specification.choices)):
        if spellable is not None and not spellable.issuperset(choice):
            continue
        try:
            choices.append((choice.encode(), index))
        except UnicodeEncodeError:
            raise InvalidSpecificationError(f"the choice {choice!a} holds a lone surrogate") from None
    if not choices:
        raise UnsatisfiableError("the vocabulary can spell none of the choices")

    def finish(_: int) -> None:
        builder.state(exit_label=0)

    return literal_tree(builder, sorted(choices), finish, exit_label=0)


def warm_up(vocabulary: Vocabulary) -> None:
    """Do once what every first request would otherwise pay for: kernels, the vocabulary's tables, shared automata."""
    number_automaton.any_number()
    number_automaton.integer()
    # Patterns with negated classes need Python's own tables of digits, letters and spaces.
    compile_regex(r"\D\W\S", search=False, limits=Limits())
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 9}, "number": {"type": "number"}},
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    fsm.materialize(max_states=64)
    fsm.shortest_completion(fsm.initial_state)
    TokenFSM.from_bytes(fsm.to_bytes(), vocabulary)
