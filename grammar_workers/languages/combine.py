"""The parts of a specification put together: front ends yield DFAs over characters or rules, `all_of` intersects them.

regular x regular           product of character automata; a choice is filtered by the rest
regular x grammar           product of the rules of one recursive grammar and a character automaton
JSON x JSON                 conjunction of the schemas
JSON x banned words         every string and name of the document is restricted; where a word could also match
                            outside of strings, the raw text, too
JSON x regular              product of the pushdown automaton and a byte automaton
structural tag x regular    the same
positions, automata over    combine with nothing
token ids
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from grammar_workers import tag_formats
from grammar_workers.budget import budget_of
from grammar_workers.dfa.dfa import Dfa, combine, intersect, literal_set, restrict
from grammar_workers.errors import GrammarError, LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages import automaton as automata
from grammar_workers.languages.banned_in_json import matters_outside, permitted_strings
from grammar_workers.languages.cfg.reading import guess_syntax, read_grammar, rule_graph
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.json_schema.assertions import FormulaId, JsonType
from grammar_workers.languages.json_schema.emit.emitter import Emitter
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.languages.json_schema.read.reader import SchemaReader
from grammar_workers.languages.json_schema.read.unenforced import joined
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.solver import Solver
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.strings import Strings
from grammar_workers.languages.positions import names_tokens, token_positions
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.regex.counters import NotCountableError, counted_text
from grammar_workers.languages.regular_kinds import RegularSpecification, choices, dfa_of
from grammar_workers.languages.tags.automaton import FormatNfa
from grammar_workers.languages.tags.construct import Construction, Content
from grammar_workers.languages.tags.free_text import free_text
from grammar_workers.languages.tags.parameters import JSON_TEXTS, Constant, StringTexts, parameters_of
from grammar_workers.languages.tags.triggers import ContentFormat, format_of
from grammar_workers.languages.tags.values import Values
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.pushdown import intersect as product
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.pushdown.trie import trie_of_texts
from grammar_workers.specification import (
    AllOfSpecification,
    AutomatonSpecification,
    BannedWordsSpecification,
    ChoiceSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonObjectSpecification,
    JsonSchema,
    JsonSchemaSpecification,
    PositionsSpecification,
    RegexSpecification,
    StructuralTagSpecification,
)
from grammar_workers.types import UnenforcedKeyword
from grammar_workers.vocabulary.vocabulary import Vocabulary

_DOUBTS = (
    "some objects are left out: undeclared properties may repeat a name, so only the first surely counts, and where "
    "they must satisfy different things it is not certain which of them do"
)


@dataclasses.dataclass
class _Parts:
    """The parts of one specification by how they are compiled, each with its JSON Pointer inside the whole one.

    `automata` are those of grammars that turned out to be regular.
    """

    regular: list[tuple[str, RegularSpecification]] = dataclasses.field(default_factory=list)
    automata: list[Dfa] = dataclasses.field(default_factory=list)
    recursive: list[tuple[str, TransitionNetwork]] = dataclasses.field(default_factory=list)
    json: list[tuple[str, JsonSchemaSpecification | JsonObjectSpecification]] = dataclasses.field(default_factory=list)
    tags: list[tuple[str, StructuralTagSpecification]] = dataclasses.field(default_factory=list)
    tokens: list[tuple[str, PositionsSpecification | AutomatonSpecification]] = dataclasses.field(default_factory=list)

    def beyond_regular(self) -> list[tuple[str, str]]:
        """(pointer, what it is) of the parts of which one may be combined with regular ones; JSON ones count once."""
        return [
            *((pointer, "a recursive grammar") for pointer, _ in self.recursive),
            *((pointer, "structural_tag") for pointer, _ in self.tags),
            *((pointer, _over_tokens(part)) for pointer, part in self.tokens),
            *((pointer, "a JSON specification") for pointer, _ in self.json[:1]),
        ]


class Combination:
    """One compilation: front ends write into one builder; `notes` collects what they ignored, `unenforced` what schemas
    assert in vain.
    """

    def __init__(
        self, vocabulary: Vocabulary, resources: Mapping[str, Any], options: GrammarOptions, limits: Limits
    ) -> None:
        self._vocabulary = vocabulary
        self._resources = resources
        self._options = options
        self._limits = limits
        self._budget = budget_of(limits)
        self._builder = PushdownBuilder(limits)
        self.notes: list[str] = []
        self.unenforced: list[UnenforcedKeyword] = []
        self._doubt: str | None = None
        self._values = Values()
        self._json_values: dict[str, int] = {}

    def pushdown(self, specification: GrammarSpecification) -> PushdownAutomaton | RuleGraph:
        """The byte automaton of a whole specification: a rule graph where a grammar is truly recursive."""
        parts = self._read("", specification)
        beyond = parts.beyond_regular()
        if len(beyond) > 1:
            raise UnsupportedFeatureError(f"{beyond[1][1]} together with {beyond[0][1]}", pointer=beyond[1][0])
        if parts.recursive:
            automaton = self._intersection(parts) if parts.regular or parts.automata else None
            return rule_graph(parts.recursive[0][1], automaton, self._limits)
        if not beyond:
            return self._builder.build(self._regular_entry(parts))
        if parts.tokens:
            return self._token_automaton(parts)
        if parts.tags:
            formats = self._formats(*parts.tags[0])
            if isinstance(formats, FormatNfa):
                restriction = self._intersection(parts) if parts.regular or parts.automata else None
                return self._values.graph(formats, restriction, self._limits)
            entry = formats
        else:
            entry, parts = self._json_entry(parts)
        pushdown = self._builder.build(entry)
        if not parts.regular and not parts.automata:
            return pushdown
        automaton = self._intersection(parts)
        try:
            return product.intersect(pushdown, automaton, self._limits)
        except UnsatisfiableError:
            if self._doubt:
                raise UnsupportedFeatureError(
                    f"no text is certain to match all specifications: {self._doubt}"
                ) from None
            raise

    def _read(self, pointer: str, specification: GrammarSpecification) -> _Parts:
        parts = _Parts()
        for inside, part in _flatten(pointer, specification):
            if isinstance(part, AutomatonSpecification):
                self.notes += automata.left_out(part)
            if isinstance(part, JsonSchemaSpecification | JsonObjectSpecification):
                parts.json.append((inside, part))
            elif isinstance(part, StructuralTagSpecification):
                parts.tags.append((inside, part))
            elif (isinstance(part, PositionsSpecification) and names_tokens(part.allowed)) or (
                isinstance(part, AutomatonSpecification) and automata.names_tokens(part)
            ):
                parts.tokens.append((inside, part))
            elif isinstance(part, GrammarTextSpecification):
                with located(inside):
                    found = read_grammar(part.text, part.syntax, self._vocabulary.alphabet, self._limits)
                if isinstance(found, Dfa):
                    parts.automata.append(found)
                else:
                    parts.recursive.append((inside, found))
            else:
                assert isinstance(part, RegularSpecification)
                parts.regular.append((inside, part))
        return parts

    # -- regular -----------------------------------------------------------------------------------------------------

    def _any_text(self, pointer: str, part: RegularSpecification) -> Dfa:
        """The texts that a regular part allows."""
        with located(pointer):
            return dfa_of(part, self._limits)

    def _automaton(self, pointer: str, part: RegularSpecification) -> Dfa:
        """The same, as far as the vocabulary can spell them."""
        return restrict(self._any_text(pointer, part), self._vocabulary.alphabet)

    def _intersection(self, parts: _Parts, pointer: str | None = None) -> Dfa:
        """The texts that all regular parts allow; raises UnsatisfiableError at `pointer` when there are none."""
        automata = [*(self._automaton(pointer, part) for pointer, part in parts.regular), *parts.automata]
        automaton = intersect(automata, self._limits)
        if automaton.is_empty:
            raise UnsatisfiableError(
                "no text matches the pattern" if len(automata) == 1 else "no text matches all specifications",
                pointer=pointer,
            )
        return automaton

    def _regular_entry(self, parts: _Parts) -> int:
        lists = [(pointer, part) for pointer, part in parts.regular if isinstance(part, ChoiceSpecification)]
        if not lists:
            try:
                with self._budget.share(2):
                    automaton = self._intersection(parts)
            except LimitExceededError:
                entry = self._counted_entry(parts)
                if entry is None:
                    raise
                return entry
            return StringLowering(self._builder).raw_text(automaton)
        others = [
            self._automaton(pointer, part)
            for pointer, part in parts.regular
            if not isinstance(part, ChoiceSpecification)
        ]
        return self._choice_entry(lists, [*others, *parts.automata])

    def _counted_entry(self, parts: _Parts) -> int | None:
        """A regular expression that is too large with its counts written out; None where they must be."""
        if len(parts.regular) > 1 or parts.automata or not isinstance(parts.regular[0][1], RegexSpecification):
            return None
        with contextlib.suppress(NotCountableError, LimitExceededError):
            entry = counted_text(parts.regular[0][1].pattern, self._vocabulary.alphabet, self._builder, self._limits)
            if entry is None:
                raise UnsatisfiableError("no text matches the pattern")
            return entry
        return None

    def _choice_entry(self, lists: Sequence[tuple[str, ChoiceSpecification]], automata: Sequence[Dfa]) -> int:
        remaining: dict[str, None] | None = None
        for pointer, part in lists:
            with located(pointer):
                found = choices(part)
            remaining = dict.fromkeys(c for c in found if remaining is None or c in remaining)
        assert remaining is not None
        spellable = self._vocabulary.spellable
        entries = [
            (choice.encode(), index)
            for index, choice in enumerate(remaining)
            if (spellable is None or spellable.issuperset(choice)) and all(a.classify(choice) for a in automata)
        ]
        if not entries:
            raise UnsatisfiableError(
                "no choice matches all specifications"
                if automata or len(lists) > 1
                else "the vocabulary can spell none of the choices"
            )

        return trie_of_texts(self._builder, sorted(entries), lambda _: 0, exit_label=0)

    def _token_automaton(self, parts: _Parts) -> PushdownAutomaton:
        pointer, part = parts.tokens[0]
        if parts.regular or parts.automata:
            raise UnsupportedFeatureError(f"{_over_tokens(part)} together with another specification", pointer=pointer)
        with located(pointer):
            if isinstance(part, AutomatonSpecification):
                entry = automata.token_automaton(part, self._vocabulary, self._builder, self._limits)
            else:
                entry = token_positions(part.allowed, self._vocabulary, self._builder, self._limits)
            return self._builder.build(entry)

    # -- JSON --------------------------------------------------------------------------------------------------------

    def _json_entry(
        self,
        parts: _Parts,
        options: GrammarOptions | None = None,
        *,
        any_of: bool = False,
        inside: str = "/schema",
    ) -> tuple[int, _Parts]:
        """The entry state of the values that all JSON parts allow, and the regular parts that the raw text must match.

        With `any_of`, of the values that one of them allows.

        Banned words are taken into account in every string, and are left over only where they matter outside of them.
        """
        banned = [(pointer, part) for pointer, part in parts.regular if isinstance(part, BannedWordsSpecification)]
        permitted = None
        options = self._options if options is None else options
        if banned:
            if options.escapes == "any":
                # A word could be hidden in an escape, or be one: what is searched has one spelling.
                options = options.model_copy(update={"escapes": "minimal"})
                self.notes.append("strings have their minimal spelling beside banned words, not any escape")
            # What the vocabulary spells is for strings to say: it may have an escape and not the character.
            restriction = intersect([self._any_text(pointer, part) for pointer, part in banned], self._limits)
            permitted = permitted_strings(restriction, self._limits)
            outside = [
                (pointer, part.model_copy(update={"words": words}))
                for pointer, part in banned
                if (words := self._outside_of_strings(part, part.words))
            ]
            parts = dataclasses.replace(parts, regular=[*(p for p in parts.regular if p not in banned), *outside])
        pool = FormulaPool(self._limits)
        formulas = []
        for pointer, part in parts.json:
            if isinstance(part, JsonObjectSpecification):
                formulas.append(pool.types(JsonType.OBJECT))
                continue
            formulas.append(self._schema(part.json_schema, pool, options, pointer, inside))
        root = Demand(pool.canonical(pool.any_of(formulas) if any_of else pool.all_of(formulas)))
        solver = Solver(pool, options, self._limits, self._vocabulary.spellable, permitted)
        solver.solve(root)
        with located(parts.json[0][0], inside):
            entry = Emitter(solver, self._builder, options).emit(root)
        self.notes += solver.notes
        self._doubt = self._doubt or solver.doubt
        if solver.has_doubts:
            self.notes.append(_DOUBTS)
        self.notes += [
            f"the property {name!a} is left out: ECMA-262 and Python disagree whether a pattern matches its name"
            for name in solver.disputed_names
        ]
        return entry, parts

    def _schema(
        self, schema: JsonSchema, pool: FormulaPool, options: GrammarOptions, pointer: str, inside: str = ""
    ) -> FormulaId:
        """The formula of a schema; `pointer` and `inside` as in `located`."""
        reader = SchemaReader(schema, self._resources, pool, options, self._limits)
        with located(pointer, inside):
            formula = reader.read()
        self.notes += reader.notes
        before = f"{pointer}{inside}" if pointer else ""
        found = [UnenforcedKeyword(pointer=before + one["pointer"], reason=one["reason"]) for one in reader.unenforced]
        self.unenforced = joined(self.unenforced, found)
        return formula

    def _outside_of_strings(self, part: BannedWordsSpecification, words: list[str]) -> list[str]:
        """Those of the words that can occur in JSON text although they occur in none of its strings."""
        automaton = self._any_text("", part.model_copy(update={"words": words}))
        if not matters_outside(automaton, self._limits):
            return []
        if len(words) == 1:
            return words
        half = len(words) // 2
        return self._outside_of_strings(part, words[:half]) + self._outside_of_strings(part, words[half:])

    # -- structural tags ---------------------------------------------------------------------------------------------

    def _formats(self, pointer: str, part: StructuralTagSpecification) -> int | FormatNfa:
        """The first state of what formats allow; their automaton where they hold recursive grammars."""
        place = pointer if part.format is None else f"{pointer}/format"
        nfa = Construction(self._vocabulary, self._limits, self).run(format_of(part), place)
        if self._values.grammars:
            return nfa
        return self._values.entry(nfa, self._vocabulary, self._builder, self._budget)

    def format_content(self, format_: tag_formats.Format, pointer: str) -> Content:
        """What a format allows that is a language of its own."""
        match format_:
            case tag_formats.RegexFormat():
                return self._automaton(pointer, RegexSpecification(pattern=format_.pattern))
            case tag_formats.GrammarFormat():
                return self._grammar(format_.grammar, guess_syntax(format_.grammar), pointer, f"{pointer}/grammar")
            case tag_formats.JsonSchemaFormat() if format_.style == "json":
                return self.json_value([(format_, pointer)])
            case tag_formats.JsonSchemaFormat() | tag_formats.QwenXmlParameterFormat() | tag_formats.ParametersFormat():
                return parameters_of(format_, pointer, self._options.whitespace_limit), pointer
            case StringTexts():
                return self._string_texts(format_, pointer)
            case Constant():
                value = {**format_.json_schema, "const": json.loads(format_.text)}
                try:
                    self._json_entry(_Parts(json=[(pointer, JsonSchemaSpecification(json_schema=value))]))
                except UnsatisfiableError:
                    return literal_set({})
                return restrict(literal_set({format_.text: 1}), self._vocabulary.alphabet)
            case tag_formats.SpecificationFormat():
                if isinstance(format_, ContentFormat):
                    return self._content(pointer, format_.specification, is_open=format_.is_open)
                return self._content(f"{pointer}/specification", format_.specification)
        raise AssertionError(f"a format without a meaning: {format_!r}")

    def _string_texts(self, leaf: StringTexts, pointer: str) -> Dfa:
        pool = FormulaPool(self._limits)
        formula = self._schema(leaf.json_schema, pool, self._options, pointer)
        found = Strings(pool, self._limits, Spelling(self._vocabulary.spellable)).texts(pool.canonical(formula))
        automata = [found, free_text({}, [text for text in leaf.excludes if text], self._vocabulary, self._limits)]
        if leaf.but_json:
            automata.append(compile_regex(JSON_TEXTS, search=False, limits=self._limits))
        verdict = combine(automata, lambda found: int(found[0] and found[1] and not any(found[2:])), self._limits)
        return restrict(verdict, self._vocabulary.alphabet)

    def json_value(self, alternatives: Sequence[tuple[tag_formats.JsonSchemaFormat, str]]) -> int:
        """The number of the value that one of these formats, which differ in their schemas alone, allows."""
        format_, pointer = alternatives[0]
        known = self._json_values.get(pointer)
        if known is None:
            parts = _Parts(
                json=[(place, JsonSchemaSpecification(json_schema=one.json_schema)) for one, place in alternatives]
            )
            if format_.excludes:
                banned = BannedWordsSpecification(words=format_.excludes, case_sensitive=True)
                parts.regular.append((f"{pointer}/excludes", banned))
            changes: dict[str, Any] = {"property_order": "any"} if format_.any_order else {}
            if format_.max_whitespace_cnt is not None:
                if not 0 < format_.max_whitespace_cnt <= 64:
                    raise UnsupportedFeatureError(
                        "white space is limited to between 1 and 64 characters", pointer=f"{pointer}/max_whitespace_cnt"
                    )
                changes |= {"whitespace": "flexible", "whitespace_limit": format_.max_whitespace_cnt}
            options = self._options.model_copy(update=changes)
            entry, left = self._json_entry(parts, options, any_of=True, inside="/json_schema")
            if left.regular:
                raise UnsupportedFeatureError(
                    "a text that may occur in JSON outside of strings", pointer=f"{pointer}/excludes"
                )
            known = self._json_values[pointer] = self._values.add_json(entry, pointer)
        return known

    def _content(self, pointer: str, specification: GrammarSpecification, *, is_open: bool = False) -> Content:
        """What a specification in a tag allows; `is_open` as in `ContentFormat`."""
        if isinstance(specification, StructuralTagSpecification):
            return format_of(specification), pointer if specification.format is None else f"{pointer}/format"
        if isinstance(specification, GrammarTextSpecification):
            return self._grammar(specification.text, specification.syntax, pointer, pointer)
        parts = self._read(pointer, specification)
        beyond = parts.beyond_regular()
        if not beyond:
            return self._intersection(parts, pointer)
        if not parts.json or len(beyond) > 1:
            where, what = beyond[-1]
            together = "" if parts.tokens else " together with another specification"
            raise UnsupportedFeatureError(f"{what}{together} inside a tag", pointer=where)
        entry, parts = self._json_entry(parts)
        if parts.regular or parts.automata:
            raise UnsupportedFeatureError(
                "a restriction of raw text inside a tag; put it beside the structural_tag in all_of",
                pointer=parts.regular[0][0] if parts.regular else pointer,
            )
        return self._values.add_json(entry, pointer, is_open=is_open)

    def _grammar(self, text: str, syntax: Literal["gbnf", "lark"], pointer: str, inside: str) -> Content:
        """What a grammar allows whose text stands at `inside`."""
        with located(pointer):
            found = read_grammar(text, syntax, self._vocabulary.alphabet, self._limits)
        return found if isinstance(found, Dfa) else self._values.add_grammar(found, inside)


def _over_tokens(part: PositionsSpecification | AutomatonSpecification) -> str:
    """What such a part is called in messages."""
    return "positions of token ids" if isinstance(part, PositionsSpecification) else "an automaton over token ids"


def _flatten(pointer: str, specification: GrammarSpecification) -> list[tuple[str, GrammarSpecification]]:
    """The parts of an `all_of`, those of nested ones included, with their pointers; of anything else, itself."""
    if not isinstance(specification, AllOfSpecification):
        return [(pointer, specification)]
    return [
        part
        for index, inner in enumerate(specification.specifications)
        for part in _flatten(f"{pointer}/specifications/{index}", inner)
    ]


@contextlib.contextmanager
def located(pointer: str, inside: str = "") -> Iterator[None]:
    """Errors inside point into the whole specification: `pointer` is the part's, `inside` that of its own pointers."""
    try:
        yield
    except GrammarError as error:
        if pointer:
            error.pointer = pointer if error.pointer is None else pointer + inside + error.pointer
        raise
