"""The explorer: its files are served and complete, and its arithmetic agrees with the whole distribution."""

from __future__ import annotations

import itertools
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py_mini_racer import MiniRacer

from deployments.explorer import PAGE
from deployments.http.tenants import ApiKey, Tenants
from deployments.openai import logprobs as answers
from deployments.openai.constraints import StructuredOutputs
from deployments.openai.logprobs import AutomatonGraph, Surroundings, chat_logprobs, diagnostics
from deployments.openai.protocol import ChatCompletionBody
from gpu_workers.guided.automaton_view import add_surroundings
from gpu_workers.sampling.logprobs import DIAGNOSTIC_CHOICES, StepDiagnostics, TokenLogprob, TokenNames, TokenReport
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

NAMES = ['{"', "name", "é", "‹C3›", "‹A9›", " ", "\n", "<|end|>"]
"""As the page writes them: halves of a character in hexadecimal."""
BYTES = [b'{"', b"name", "é".encode(), b"\xc3", b"\xa9", b" ", b"\n", b""]
VOCABULARY = Vocabulary(BYTES, [7], {"<|end|>": 7})

VOCABULARY_OF_LETTERS = Vocabulary([b"a", b"b", b"ab", b"ba", None], [4])


class Page(HTMLParser):
    """The ids, labels and references of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.labelled: list[str] = []
        self.references: list[str] = []
        self.pages: list[str] = []
        self.feed((PAGE / "index.html").read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        self.labelled += [given["for"]] if "for" in given else []
        found = [given[name] for name in ("src", "href") if name in given and given[name] != "data:,"]
        self.references += [one for one in found if not one.startswith("../")]
        self.pages += [one for one in found if one.startswith("../")]


@pytest.fixture(scope="module")
def scripts() -> MiniRacer:
    context = MiniRacer()
    for name in ("steps.js", "automaton.js", "graph.js", "examples.js"):
        context.eval((PAGE / name).read_text())
    return context


@pytest.mark.anyio
async def test_the_page_and_its_files_are_served_without_a_key(compiler: FakeCompiler, replica: FakeReplica) -> None:
    tenants = Tenants([ApiKey(tenant="tests", sha256="0" * 64)])
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    async with client_of(application(compiler, replica, tenants=tenants)) as http:
        redirected = await http.get("/explorer")
        assert redirected.headers["location"] == "http://turnstile/explorer/"
        for name in ["", *Page().references]:
            response = await http.get(f"/explorer/{name}")
            assert response.status_code == 200
            assert response.headers["content-type"].startswith(kinds[f".{name.rpartition('.')[2] or 'html'}"])
        for name in Page().pages:
            assert (await http.get(f"/explorer/{name}")).status_code == 200
        assert Page().pages == ["../", "../docs"]
        assert (await http.get("/explorer/../http.py")).status_code == 404
        assert "error" in (await http.get("/explorer/none.js")).json()


def test_the_page_refers_to_its_own_files_and_elements_only() -> None:
    page = Page()
    assert sorted([*page.references, "index.html"]) == sorted(file.name for file in PAGE.iterdir())
    assert all("://" not in file.read_text() for file in PAGE.iterdir())
    assert len(page.ids) == len(set(page.ids))
    assert set(page.labelled) <= set(page.ids)
    assert set(re.findall(r'byId\("([^"]+)"\)', (PAGE / "explorer.js").read_text())) <= set(page.ids)


def test_the_scripts_parse() -> None:
    for file in PAGE.glob("*.js"):
        MiniRacer().eval(f"new Function({json.dumps(file.read_text())})")


def test_the_examples_are_requests(scripts: MiniRacer) -> None:
    for example in json.loads(str(scripts.eval("JSON.stringify(EXAMPLES)"))):
        arguments = f"{json.dumps(example['kind'])}, {json.dumps(example['constraint'])}"
        constraint = json.loads(str(scripts.eval(f"JSON.stringify(constraintOf({arguments}))")))
        assert StructuredOutputs.model_validate(constraint).specification() is not None
    source = (PAGE / "explorer.js").read_text()
    body = source[source.index("JSON.stringify({") : source.index("...(constraint ?")]
    assert set(re.findall(r"^      (\w+):", body, re.MULTILINE)) <= set(ChatCompletionBody.model_fields)


def told(logits: list[float], allowed: list[bool] | None, drawn: int) -> dict[str, Any]:
    """A choice of one token as the API tells it, with numbers from the whole distribution."""
    raw, masked = distributions(logits, allowed)

    def listed(probabilities: list[float]) -> list[TokenLogprob]:
        order = sorted((i for i, p in enumerate(probabilities) if p > 0), key=lambda i: (-probabilities[i], i))
        return [TokenLogprob(i, math.log(probabilities[i])) for i in order[:DIAGNOSTIC_CHOICES]]

    forbidden = 0.0 if allowed is None else sum(p for p, ok in zip(raw, allowed, strict=True) if not ok)
    count = None if allowed is None else sum(allowed)
    report = TokenReport(
        TokenLogprob(drawn, math.log(masked[drawn]), math.log(raw[drawn])),
        top=[],
        diagnostics=StepDiagnostics(count, forbidden, listed(raw), listed(masked)),
    )
    described = [TokenNames(VOCABULARY).describe(report, state=1, drafted=False, rolled_back=0)]
    assert [answers.StepDiagnostics.model_validate(step) for step in diagnostics(described)]
    return {"logprobs": chat_logprobs(described), "diagnostics": diagnostics(described)}


def distributions(logits: list[float], allowed: list[bool] | None) -> tuple[list[float], list[float]]:
    """Probabilities before and after the mask."""
    weights = [math.exp(logit) for logit in logits]
    kept = [w if allowed is None or allowed[i] else 0.0 for i, w in enumerate(weights)]
    return [w / sum(weights) for w in weights], [w / sum(kept) for w in kept]


@given(
    logits=st.lists(st.integers(-40, 40), min_size=8, max_size=8, unique=True),
    allowed=st.none() | st.lists(st.booleans(), min_size=8, max_size=8).filter(any),
    data=st.data(),
)
def test_rows_agree_with_the_whole_distribution(
    scripts: MiniRacer, logits: list[int], allowed: list[bool] | None, data: st.DataObject
) -> None:
    quarters = [logit / 4 for logit in logits]
    drawn = data.draw(st.sampled_from([i for i in range(8) if allowed is None or allowed[i]]))
    choice = json.dumps(told(quarters, allowed, drawn))
    [step] = json.loads(str(scripts.eval(f"JSON.stringify(stepsOf({choice}))")))
    raw, masked = distributions(quarters, allowed)
    favourite = max(range(8), key=raw.__getitem__)
    assert step["replaced"] == (allowed is not None and not allowed[favourite])
    assert step["favourite"]["text"] == NAMES[favourite]
    assert [row["text"] for row in step["rows"] if row["drawn"]] == [NAMES[drawn]]
    for row in step["rows"]:
        token = NAMES.index(row["text"])
        assert math.isclose(raw[token], row["raw"], rel_tol=1e-6)
        assert math.isclose(masked[token], row["masked"], rel_tol=1e-6)
        assert row["allowed"] == (allowed is None or allowed[token])
    most = [max(row["raw"], row["masked"]) for row in step["rows"]]
    assert most == sorted(most, reverse=True)


def test_summaries(scripts: MiniRacer) -> None:
    def summary(allowed: list[bool] | None, reason: str) -> str:
        choice = json.dumps(told([3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], allowed, 1))
        constrained = json.dumps(allowed is not None)
        return str(scripts.eval(f"summaryOf(stepsOf({choice}), {constrained}, {json.dumps(reason)})"))

    rest = [True] * 7
    assert summary(None, "stop") == "1 tokens, 0 forced, 0 drafted; no mask."
    assert summary([True, *rest], "stop").endswith("; the model's favourite was always allowed.")
    assert '; the favourite was forbidden at 1 of them, first at token 1: {".' in summary([False, *rest], "stop")
    assert summary([False, True] + [False] * 6, "length").startswith("1 tokens, 1 forced, 0 drafted; ")
    assert summary([True, *rest], "length").endswith(" The token limit cut it, so it is not complete.")


def generation(scripts: MiniRacer, name: str, steps: list[tuple[list[bool] | None, int]], reason: str = "stop") -> None:
    """Makes the JavaScript variable `name`: a run whose tokens were drawn under these masks."""
    told_steps = [told([3.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.0, -9.0], allowed, drawn) for allowed, drawn in steps]
    choice = {
        "logprobs": {"content": [one for step in told_steps for one in step["logprobs"]["content"]]},
        "diagnostics": [one for step in told_steps for one in step["diagnostics"]],
    }
    scripts.eval(f"var {name} = {{steps: stepsOf({json.dumps(choice)}), finishReason: {json.dumps(reason)}}}")


def test_where_the_free_output_leaves_the_other(scripts: MiniRacer) -> None:
    def divergence() -> Any:
        return json.loads(str(scripts.eval("JSON.stringify(divergenceOf(masked, free))")))

    def verdict() -> str:
        return str(scripts.eval("verdictOf(masked, free)"))

    no_brace, all_allowed = [False] + [True] * 7, [True] * 8
    generation(scripts, "masked", [(all_allowed, 0), (no_brace, 1)])
    generation(scripts, "free", [(None, 0), (None, 0), (None, 3)])
    assert divergence() == {"index": 1, "breaks": True}
    assert verdict() == 'Alone, the model breaks the constraint at token 2, {": no valid output goes on like this.'
    generation(scripts, "free", [(None, 0), (None, 2)])
    assert divergence() == {"index": 1, "breaks": False} and "which is allowed, too" in verdict()
    generation(scripts, "free", [(None, 0), (None, 7)])
    assert divergence() == {"index": 1, "breaks": None} and "knows nothing about" in verdict()
    generation(scripts, "free", [(None, 0), (None, 1), (None, 7)])
    assert divergence() is None and "changed nothing" in verdict()  # the end token behind a complete output
    generation(scripts, "free", [(None, 0), (None, 1), (None, 1)])
    assert divergence() == {"index": 2, "breaks": True}
    generation(scripts, "masked", [(all_allowed, 0), (no_brace, 1)], "length")
    assert divergence() is None


def test_predictions(scripts: MiniRacer) -> None:
    generation(scripts, "masked", [([True] * 8, 0), ([False] + [True] * 7, 1), ([True] * 8, 1)])

    def feedback(step: int, predicted: str) -> str:
        return str(scripts.eval(f"feedbackOf(masked.steps[{step}], {json.dumps(predicted)})"))

    assert feedback(0, "survives") == 'Right: {" is allowed and was chosen.'
    assert feedback(0, "replaced").startswith("Wrong: ")
    assert feedback(1, "replaced") == 'Right: {" would break the constraint, and name took its place.'
    assert feedback(1, "survives").startswith("Wrong: ")
    assert feedback(1, "nothing").startswith("That never happens: ")
    assert feedback(2, "survives") == 'Right: {" is allowed, but name was drawn.'


def test_the_automaton_around_a_state(scripts: MiniRacer) -> None:
    generation(scripts, "masked", [([True] * 8, 1)])
    token = TokenNames(VOCABULARY).name
    around = {
        "terminal": True,
        "successors": [
            {"state": None, "terminal": False, "tokens": [token(1), token(3)], "more_tokens": 5},
            {"state": 1, "terminal": True, "tokens": [token(5)], "more_tokens": 0},
        ],
        "more_successors": 2,
    }
    Surroundings.model_validate(around)
    scripts.eval(f"masked.steps[0].automaton = {json.dumps(around)}")
    assert scripts.eval("describeSurroundings(surroundingsOf(masked.steps[0], 7))") == (
        "State 1, accepting. name ‹C3› and 5 more to state 7, taken; · to itself, accepting. And 2 more states."
    )
    assert "to a state not visited yet, taken" in str(
        scripts.eval("describeSurroundings(surroundingsOf(masked.steps[0], null))")
    )


def graph_of(pattern: str) -> tuple[TokenFSM, dict[str, Any]]:
    """An automaton and its graph as the API tells it."""
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, VOCABULARY_OF_LETTERS)
    step: dict[str, Any] = {"state": fsm.initial_state, "masked_choices": []}
    add_surroundings([{"token_id": 0, "diagnostics": step}], fsm, VOCABULARY_OF_LETTERS)
    return fsm, AutomatonGraph.model_validate(step["graph"]).model_dump()


@pytest.mark.parametrize("pattern", ["(ab)*", "a|b", "abba|b", "[ab]{5}", "a(a|b)*b"])
def test_every_state_of_a_whole_automaton_has_a_place_of_its_own(scripts: MiniRacer, pattern: str) -> None:
    fsm, graph = graph_of(pattern)
    places = json.loads(str(scripts.eval(f"JSON.stringify([...layoutOf({json.dumps(graph)})])")))
    assert places[0][0] == fsm.initial_state
    assert {state for state, _ in places} == {one["state"] for one in graph["states"]}
    assert len({(place["x"], place["y"]) for _, place in places}) == len(places)
    told = str(scripts.eval(f"describeGraph({json.dumps(graph)}, {fsm.initial_state})"))
    assert told.startswith(f"The whole automaton, {len(graph['states'])} states; now in state {fsm.initial_state}. ")
    assert told.count(" on ") == len(graph["edges"])


def test_the_way_through_a_whole_automaton(scripts: MiniRacer) -> None:
    fsm, graph = graph_of("(ab)*")
    states = [fsm.initial_state]
    for token in (0, 1, 0, 1):
        states.append(fsm.next_state(states[-1], token))
    edges = {f"{edge['source']}>{edge['target']}" for edge in graph["edges"]}
    steps = [{"state": state, "graph": graph if state == fsm.initial_state else None} for state in states]
    scripts.eval(f"var way = {json.dumps(steps)}")
    assert json.loads(str(scripts.eval("JSON.stringify(graphOf(way))"))) == graph
    for index in range(len(states)):
        found = json.loads(
            str(scripts.eval(f"JSON.stringify([[...wayOf(way, {index}).taken], wayOf(way, {index}).next])"))
        )
        assert set(found[0]) <= edges and found[0] == list(
            dict.fromkeys(f"{a}>{b}" for a, b in itertools.pairwise(states[: index + 1]))
        )
        assert found[1] == (f"{states[index]}>{states[index + 1]}" if index + 1 < len(states) else None)
    assert scripts.eval("graphOf([{graph: null}])") is None


def test_rows_are_made_once_for_each_state(scripts: MiniRacer) -> None:
    scripts.eval("var seen = [1, 2, 1, 2, 3].map((state) => ({ state: state }))")
    assert [str(scripts.eval(f"rowOf(seen, {index})")).split(":")[0] for index in range(5)] == [
        *["made at this step, unless another output was here"] * 2,
        *["looked up"] * 2,
        "made at this step, unless another output was here",
    ]
    assert str(scripts.eval("rowOf(seen, 3)")) == "looked up: made at token 2"
    assert "each of 5 steps. Cached: 3 mask rows at most, one for each state, and 2 look-ups." in str(
        scripts.eval("checksOf(seen)")
    )


STAND_IN = """
class Drawn {
  constructor(name) { this.name = name; this.given = {}; this.children = []; this.textContent = ""; }
  setAttribute(key, value) { this.given[key] = String(value); }
  append(...children) { this.children.push(...children); }
  replaceChildren() { this.children = []; }
  all(name) { return [this, ...this.children.flatMap((one) => one.all(name))].filter((one) => one.name === name); }
}
var document = { querySelector: () => ({ namespaceURI: "" }), createElementNS: (space, name) => new Drawn(name) };
var svg = new Drawn("svg");
"""
"""As much of a document as drawing needs."""


@pytest.mark.parametrize("pattern", ["(ab)*", "[ab]{3}", "a(a|b)*b"])
def test_a_whole_automaton_is_drawn(scripts: MiniRacer, pattern: str) -> None:
    fsm, graph = graph_of(pattern)
    scripts.eval("var document = undefined")
    scripts.eval(f"(() => {{ {STAND_IN} globalThis.document = document; globalThis.picture = svg; }})()")
    scripts.eval(f"drawGraph(picture, [{{state: {fsm.initial_state}, graph: {json.dumps(graph)}}}], 0)")
    terminal = sum(one["terminal"] for one in graph["states"])
    assert scripts.eval('picture.all("circle").length') == len(graph["states"]) + terminal
    paths = json.loads(str(scripts.eval('JSON.stringify(picture.all("path").map((one) => one.given.d))')))
    loops = sum(edge["source"] == edge["target"] for edge in graph["edges"])
    assert len(paths) == 2 * len(graph["edges"]) - loops and not any("NaN" in path for path in paths)
    assert json.loads(str(scripts.eval(
        'JSON.stringify(picture.all("g").filter((one) => one.given.class.includes("here"))'
        '.map((one) => one.all("text")[0].textContent))'
    ))) == [str(fsm.initial_state)]  # fmt: skip
