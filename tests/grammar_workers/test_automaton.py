"""Automata that clients write: against a walk through their table, and networkx for what can be reached."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import Limits, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import (
    GrammarError,
    InvalidSpecificationError,
    LimitExceededError,
    UnsatisfiableError,
    UnsupportedFeatureError,
)
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    states_along,
)

CHARACTERS = "ab1é"
PATTERNS = ["a", "b", "1", "é", "[ab]", "[a-z]", r"\d", r"[^a]", ".", r"(?i)A", "(?!b)[ab]"]
NAMES: list[Any] = [0, 1, "0", "", "é"]
"""No two of these are the same state."""

SPELLED = ["a", "b", "ab", "ba", "aba"]
SPECIAL, END = 5, 6
TOKENS = Vocabulary([*(text.encode() for text in SPELLED), b"", None], [END], {"<special>": SPECIAL})


def table(initial: Any, accepting: list[Any], transitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "automaton", "initial": initial, "accepting": accepting, "transitions": transitions}


def on(source: Any, target: Any, **what: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **what}


def moves(specification: dict[str, Any], state: Any, what: str | int) -> set[Any]:
    """Where a character or a token leads from a state; more than one target: not deterministic."""
    return {
        one["to"]
        for one in specification["transitions"]
        if type(one["from"]) is type(state) and one["from"] == state
        if (what in one.get("tokens", []) if isinstance(what, int) else _matches(one, what))
    }


def _matches(one: dict[str, Any], character: str) -> bool:
    return "pattern" in one and bool(re.fullmatch(one["pattern"], character))


def walk(specification: dict[str, Any], state: Any, whats: Any) -> list[Any]:
    """[the state behind], or [] where something is forbidden."""
    for what in whats:
        found = list(moves(specification, state, what))
        if not found:
            return []
        state = found[0]
    return [state]


def is_ambiguous(specification: dict[str, Any]) -> bool:
    letters = [*CHARACTERS, "x", "A", *range(len(SPELLED) + 1)]
    return any(len(moves(specification, name, letter)) > 1 for name in NAMES for letter in letters)


def graph(specification: dict[str, Any]) -> networkx.DiGraph:
    made = networkx.DiGraph()
    made.add_node(specification["initial"])
    made.add_edges_from((one["from"], one["to"]) for one in specification["transitions"])
    return made


names = st.sampled_from(NAMES)
by_pattern = st.builds(lambda a, b, pattern: on(a, b, pattern=pattern), names, names, st.sampled_from(PATTERNS))


@settings(PROPERTY, max_examples=150)
@given(names, st.lists(names, min_size=1, max_size=2), st.lists(by_pattern, max_size=6))
def test_texts_are_what_the_table_accepts(initial: Any, accepting: list[Any], transitions: list[Any]) -> None:
    specification = table(initial, accepting, transitions)
    drawn = graph(specification)
    try:
        fsm = compile_grammar(specification, bytes_vocabulary())
    except UnsatisfiableError as error:
        assert error.pointer == "/initial"
        assert not any(name in drawn and networkx.has_path(drawn, initial, name) for name in accepting)
        return
    except InvalidSpecificationError as error:
        if str(error.pointer).startswith("/accepting"):
            assert accepting[int(str(error.pointer).split("/")[2])] not in drawn
        else:
            assert is_ambiguous(specification)
        return
    assert not is_ambiguous(specification)
    for text in map("".join, itertools.chain.from_iterable(itertools.product(CHARACTERS, repeat=n) for n in range(4))):
        state = walk(specification, initial, text)
        assert accepts(fsm, text) == bool(state and state[0] in accepting), text
    alive = set(accepting).union(*(networkx.ancestors(drawn, name) for name in accepting))
    lost = set(drawn) - {initial} - networkx.descendants(drawn, initial)
    noted = {name for note in fsm.notes for name in note.partition(": ")[2].split(", ")}
    assert noted == {ascii(name) for name in drawn if name not in alive or name in lost}


by_token = st.builds(
    lambda a, b, tokens: on(a, b, tokens=tokens),
    names,
    names,
    st.lists(st.integers(0, SPECIAL), min_size=1, max_size=3),
)
by_letter = st.builds(lambda a, b, pattern: on(a, b, pattern=pattern), names, names, st.sampled_from(["a", "b", "1"]))


def after(specification: dict[str, Any], state: Any, token: int) -> list[Any]:
    """The state after a token, as `walk`: named by the state, else read character by character."""
    if any("tokens" in one for one in specification["transitions"] if one["from"] == state):
        return walk(specification, state, [token])
    return walk(specification, state, SPELLED[token]) if token != SPECIAL else []


@settings(PROPERTY, max_examples=150)
@given(
    st.lists(names, min_size=1, max_size=2),
    st.lists(st.one_of(by_token, by_token, by_letter), min_size=1, max_size=7),
    st.randoms(use_true_random=False),
)
def test_masks_over_token_ids_are_what_can_still_be_accepted(
    accepting: list[Any], transitions: list[Any], rng: random.Random
) -> None:
    specification = table(NAMES[0], accepting, [*transitions, on(transitions[0]["from"], NAMES[0], tokens=[SPECIAL])])
    reached = networkx.DiGraph()
    reached.add_nodes_from(NAMES)
    for name, token in itertools.product(NAMES, range(SPECIAL + 1)):
        reached.add_edges_from((name, target, {}) for target in after(specification, name, token))
    alive = set(accepting).union(*(networkx.ancestors(reached, name) for name in accepting))
    try:
        compiled = compile_grammar(specification, TOKENS)
    except UnsatisfiableError:
        assert NAMES[0] not in alive
        return
    except InvalidSpecificationError as error:
        kinds = {(repr(one["from"]), "tokens" in one) for one in specification["transitions"]}
        mixed = len(kinds) > len({name for name, _ in kinds})
        assert mixed or is_ambiguous(specification) or str(error.pointer).startswith("/accepting")
        return
    assert NAMES[0] in alive and not is_ambiguous(specification)
    for fsm in (compiled, TokenFSM.from_bytes(compiled.to_bytes(), TOKENS)):
        state, name = fsm.initial_state, NAMES[0]
        for _ in range(12):
            allowed = {t for t in range(SPECIAL + 1) if set(after(specification, name, t)) & alive}
            assert fsm.allowed_tokens(state) == allowed | ({END} if name in accepting else set())
            end = walk_tokens(specification, name, fsm.shortest_completion(state))
            assert end and end[0] in accepting
            if not allowed:
                break
            token = rng.choice(sorted(allowed))
            state, name = fsm.next_state(state, token), after(specification, name, token)[0]


def walk_tokens(specification: dict[str, Any], state: Any, tokens: list[int]) -> list[Any]:
    found = [state]
    for token in tokens:
        found = after(specification, found[0], token)
        if not found:
            return []
    return found


def test_names_of_another_type_are_other_states() -> None:
    fsm = compile_grammar(table(1, ["1"], [on(1, "1", pattern="a"), on("1", 1, pattern="b")]), bytes_vocabulary())
    assert [accepts(fsm, text) for text in ("", "a", "ab", "aba")] == [False, True, False, True]


def test_a_complete_table_has_its_sink_cut_off() -> None:
    """By convention every character leads somewhere: to a state without return where the text is wrong."""
    transitions = [on("even", "odd", pattern="a"), on("odd", "even", pattern="a")]
    transitions += [on(state, "sink", pattern="[^a]") for state in ("even", "odd")] + [on("sink", "sink", pattern=".")]
    fsm = compile_grammar(table("even", ["even"], transitions), bytes_vocabulary())
    assert {fsm.vocabulary.token_bytes(token) for token in fsm.allowed_tokens(fsm.initial_state)} == {b"a", b"aa", b""}
    assert fsm.notes == ["states that no accepting state can be reached from are left out: 'sink'"]


def test_characters_that_no_token_spells_lead_nowhere() -> None:
    transitions = [on(0, 1, pattern="[A-Z€]"), on(1, 2, pattern="€"), on(1, 1, pattern="[a-z]"), on(0, 2, pattern="!")]
    fsm = compile_grammar(table(0, [2], transitions), shakespeare_vocabulary())
    assert fsm.vocabulary.token_bytes(*fsm.allowed_tokens(fsm.initial_state)) == b"!"
    named = [*transitions, on(2, 0, tokens=[3])]
    fsm = compile_grammar(table(0, [2], named), shakespeare_vocabulary())
    assert fsm.vocabulary.token_bytes(*fsm.allowed_tokens(fsm.initial_state)) == b"!"
    with pytest.raises(UnsatisfiableError):
        compile_grammar(table(0, [2], transitions[:3]), shakespeare_vocabulary())


def test_it_combines_as_other_regular_kinds_do() -> None:
    loop = table(0, [0], [on(0, 1, pattern="[ab]"), on(1, 0, pattern="[a-c]")])
    both = {"type": "all_of", "specifications": [{"type": "regex", "pattern": "(?!aa).*"}, loop]}
    fsm = compile_grammar(both, characters_vocabulary())
    assert [accepts(fsm, text) for text in ("", "ab", "aa", "abac", "abc")] == [True, True, False, True, False]
    tags = [{"begin": "<", "content": loop, "end": ">"}]
    fsm = compile_grammar({"type": "structural_tag", "tags": tags, "triggers": ["<"]}, bytes_vocabulary())
    assert accepts(fsm, "x<abac>") and not accepts(fsm, "x<c>")


A, B = on(0, 1, pattern="a"), on(1, 0, pattern="b")


@pytest.mark.parametrize(
    ("initial", "accepting", "transitions", "pointer"),
    [
        (2, [0], [A], "/initial"),
        (1, [0], [A], "/initial"),
        (0, [0, 2], [A], "/accepting/1"),
        (0, [], [A], "/accepting"),
        (0, [True], [A], "/accepting/0"),
        (0.0, [0], [A], "/initial"),
        (None, [0], [A], "/initial"),
        (0, [1], [A, on(0, 0, pattern="[a-z]")], "/transitions/1/pattern"),
        (0, [1], [A, B, on(0, 1, pattern="ab")], "/transitions/2/pattern"),
        (0, [1], [A, on(0, 1, pattern="b?")], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1, pattern="b*c")], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1, pattern="")], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1, pattern="[")], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1, pattern="(?!b)b")], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1, pattern="\ud800")], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1, pattern=5)], "/transitions/1/pattern"),
        (0, [1], [A, on(0, 1)], "/transitions/1"),
        (0, [1], [A, on(0, 1, pattern="c", tokens=[5])], "/transitions/1"),
        (0, [1], [A, on(0, 1, other="c")], "/transitions/1/other"),
        (0, [1], [A, {"from": 0, "pattern": "b"}], "/transitions/1/to"),
        (0, [1], [A, on(1, 0, tokens=[])], "/transitions/1/tokens"),
        (0, [1], [A, on(1, 0, tokens=[5, "a"])], "/transitions/1/tokens/1"),
        (0, [1], [A, on(1, 0, tokens=[5, True])], "/transitions/1/tokens/1"),
        (0, [1], [A, on(1, 0, tokens=[5, 10**6])], "/transitions/1/tokens/1"),
        (0, [1], [A, on(1, 0, tokens=[-1])], "/transitions/1/tokens/0"),
        (0, [1], [A, on(1, 0, tokens=[258])], "/transitions/1/tokens/0"),
        (0, [1], [A, B, on(0, 0, tokens=[5])], "/transitions/2/tokens"),
        (0, [1], [A, on(1, 0, tokens=[5]), on(1, 1, tokens=[7, 5])], "/transitions/2/tokens/1"),
        (0, [1], [on(0, 0, tokens=[5]), on(2, 1, tokens=[7])], "/initial"),
    ],
)
def test_malformed_tables_are_refused_with_their_place(
    initial: Any, accepting: list[Any], transitions: list[Any], pointer: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_grammar(table(initial, accepting, transitions), bytes_vocabulary())
    assert caught.value.pointer == pointer


def test_token_ids_stand_alone() -> None:
    tokens = table(0, [1], [on(0, 1, tokens=[97])])
    tag = {"type": "structural_tag", "tags": [{"begin": "<a>", "content": tokens, "end": "</a>"}], "triggers": ["<a>"]}
    for specification, pointer in (
        ({"type": "all_of", "specifications": [{"type": "regex", "pattern": "a*"}, tokens]}, "/specifications/1"),
        (tag, "/tags/0/content"),
    ):
        with pytest.raises(UnsupportedFeatureError, match="an automaton over token ids") as caught:
            compile_grammar(specification, bytes_vocabulary())
        assert caught.value.pointer == pointer


def test_end_tokens_end_and_cannot_be_named_but_special_ones_can() -> None:
    fsm = compile_grammar(table(0, [1], [on(0, 1, tokens=[256]), on(1, 0, pattern="a")]), bytes_vocabulary())
    assert fsm.allowed_tokens(fsm.initial_state) == {256}
    for seed in range(5):
        assert random_walk(fsm, random.Random(seed))[0] == 256
    assert fsm.is_terminal(states_along(fsm, [256, 97, 256])[-1])


@pytest.mark.parametrize("pattern", [r"[^\w{}]", "[{}b]", "(?i)[{}]"])
def test_large_tables_are_refused_before_they_cost_much(pattern: str) -> None:
    transitions = [on(n, n + 1, pattern=pattern.format(chr(0x4E00 + n))) for n in range(15_000)]
    with pytest.raises(LimitExceededError):
        compile_grammar(table(0, [1], transitions), bytes_vocabulary(), limits=Limits(max_specification_bytes=1 << 22))


def test_many_states_are_no_trouble() -> None:
    transitions = [on(n, n + 1, pattern=chr(97 + n % 26)) for n in range(10_000)]
    fsm = compile_grammar(table(0, [10_000], transitions), bytes_vocabulary())
    assert len(fsm.vocabulary.encode(b"x") or []) == 1
    assert accepts(fsm, "".join(chr(97 + n % 26) for n in range(10_000)))
