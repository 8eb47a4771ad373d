"""What vLLM's API process makes of a request before it reaches the engine, with compile processes of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deployments.vllm.admission import Admission
from deployments.vllm.compilers import RemoteCompiler
from deployments.vllm.requests import read_request
from deployments.vllm.settings import PluginSettings
from gpu_workers.request import RequestError
from gpu_workers.vllm.backend import GrammarLoader
from gpu_workers.vllm.reference import Reference
from grammar_workers import GrammarError, TokenFSM
from grammar_workers.errors import InvalidSpecificationError, UnsupportedFeatureError
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.documents import REPOSITORY

MODEL = str(REPOSITORY / "models" / "turnstile-tiny")
COLOURS = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"enum": ["red", "blue"]}}}
CLOSED = {**COLOURS, "required": ["a", "b"], "additionalProperties": False}


NESTED: Any = functools.reduce(lambda inner, _: [inner], range(100_000), [])


@dataclasses.dataclass
class Params:
    """The fields of vLLM's `StructuredOutputsParams`."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class Served:
    """The admission of a server, and the automata that its engine would load."""

    def __init__(self, folder: str, **settings: Any) -> None:
        self.settings = PluginSettings(store=f"file://{folder}", **settings)
        self.admission = Admission(MODEL, self.settings)
        self.admission.wait_ready()
        self.vocabulary = load_vocabulary(MODEL)
        self._loader = GrammarLoader(self.vocabulary, self.settings.store)

    def ask(self, min_tokens: int = 0, max_tokens: int | None = 100, **constraint: Any) -> Reference:
        return Reference.parse(self.admission.submit(Params(**constraint), min_tokens, max_tokens).result(60))

    def matches(self, reference: Reference, text: str) -> bool:
        fsm: TokenFSM = self._loader.load(reference.key)
        state = fsm.initial_state
        for token in self.vocabulary.encode(text.encode()) or [-1]:
            state = fsm.next_state(state, token)
        return fsm.is_terminal(state)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield Served(str(tmp_path_factory.mktemp("store")))


def extended(**extension: Any) -> dict[str, Any]:
    return {**CLOSED, "x-turnstile": extension}


@pytest.mark.parametrize(
    "tag",
    [
        {"format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "b+"}, "end": "</a>"}},
        {"triggers": ["<a>"], "structures": [{"begin": "<a>", "schema": {"enum": ["b"]}, "end": "</a>"}]},
    ],
)
def test_structural_tags_in_both_notations(served: Served, tag: dict[str, Any]) -> None:
    reference = served.ask(structural_tag=json.dumps({"type": "structural_tag", **tag}))
    body = "bb" if "format" in tag else '"b"'
    assert served.matches(reference, f"<a>{body}</a>")
    assert not served.matches(reference, "<a>c</a>")


def test_options_of_one_request(served: Served) -> None:
    plain = served.ask(json=CLOSED)
    assert served.matches(plain, '{"b": 1, "a": "red"}')
    assert not served.matches(plain, '{"a":"red","b":1}')
    free = served.ask(json=extended(whitespace="flexible", property_order="any"))
    assert served.matches(free, '{"a":"red",\n"b":1}') and served.matches(free, '{"b": 1, "a": "red"}')
    assert len({plain.key, free.key, served.ask(json=extended(whitespace="flexible")).key}) == 3
    # The server's own options, and the text of a schema, are the same grammar.
    assert served.ask(json=extended(whitespace="compact")).key == plain.key == served.ask(json=extended()).key
    assert (
        served.ask(json='{"x-turnstile": {"escapes": "any"}, "type": "string"}').key
        != served.ask(json='{"type": "string"}').key
    )


@pytest.mark.parametrize(
    ("extension", "pointer"),
    [
        ({"white_space": "compact"}, "/white_space"),
        ({"whitespace": "none"}, "/whitespace"),
        ({"whitespace_limit": "8"}, "/whitespace_limit"),
        ({"whitespace_limit": 0}, "/whitespace_limit"),
        ({"whitespace_limit": True}, "/whitespace_limit"),
        ({"additional_properties": "false"}, "/additional_properties"),
        ({"finish_within_budget": 1}, "/finish_within_budget"),
        ({"banned_words": []}, "/banned_words"),
        ({"banned_words": "word"}, "/banned_words"),
        ({"banned_words": ["a", 1]}, "/banned_words/1"),
        ({"banned_words": {"words": ["a"], "whole": True}}, "/banned_words/whole"),
        ({"substring_of": 1}, "/substring_of"),
        ({"substring_of": {"text": "a", "words": True}}, "/substring_of/words"),
        ({"banned_words": ["a", ""]}, "/banned_words/1"),
        ({"banned_words": {"words": ["a", ""]}}, "/banned_words/words/1"),
        ({"a~/b": 1}, "/a~0~1b"),
        ([], ""),
        (None, ""),
        ("compact", ""),
        ({f"f{i}": i for i in range(100_000)}, "/f0"),
        ({"whitespace_limit": float("nan")}, "/whitespace_limit"),
        ({"whitespace": "\ud800"}, ""),
        (NESTED, ""),
    ],
)
def test_a_wrong_field_is_refused_at_its_place(served: Served, extension: Any, pointer: str) -> None:
    with pytest.raises(GrammarError) as refused:
        served.ask(json={**CLOSED, "x-turnstile": extension})
    assert refused.value.pointer == "/json/x-turnstile" + pointer
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(("name", "meant"), [("white_space", " Is whitespace meant?"), ("colour" * 10_000, "")])
def test_who_mistypes_a_field_is_told_which_there_are(served: Served, name: str, meant: str) -> None:
    with pytest.raises(InvalidSpecificationError) as refused:
        served.ask(json=extended(**{name: 1}))
    assert str(refused.value).startswith(
        f"unknown field.{meant} x-turnstile takes whitespace, whitespace_limit, property_order, "
    )
    assert all(field in str(refused.value) for field in ("finish_within_budget", "banned_words"))
    with pytest.raises(InvalidSpecificationError) as inside:
        served.ask(json=extended(banned_words={"words": ["a"], "whole_word": True}))
    expected = "unknown field. Is whole_words meant? banned_words takes words, case_sensitive, whole_words"
    assert str(inside.value).startswith(expected)


@pytest.mark.parametrize("extension", ["the red one", {"text": "the red one", "whole_words": True}])
def test_a_string_is_a_span_of_a_text(served: Served, extension: Any) -> None:
    for schema, text in (
        ({"type": "string", "x-turnstile": {"substring_of": extension, "whitespace": "flexible"}}, '"{}"'),
        ({"items": {"type": "string", "x-turnstile": {"substring_of": extension}}, "type": "array"}, '["{}"]'),
    ):
        reference = served.ask(json=schema)
        assert served.matches(reference, text.format("red one"))
        assert not served.matches(reference, text.format("green"))
        assert served.matches(reference, text.format("ed on")) is isinstance(extension, str)


def test_banned_words_beside_a_schema(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for banned in (["red", "blue"], {"words": ["RED", "blue"], "case_sensitive": False}):
        reference = served.ask(json={**schema, "x-turnstile": {"banned_words": banned}})
        assert served.matches(reference, '{"a": "green"}')
        assert not served.matches(reference, '{"a": "a redder one"}')
        assert not served.matches(reference, '{"a": "b", "blue": 1}')
    with pytest.raises(GrammarError, match=r"banned|nothing|match|satisf") as refused:
        served.ask(json={**schema, "x-turnstile": {"banned_words": ["a"]}})
    assert refused.value.code == "unsatisfiable_grammar"
    wrong = {"properties": {"n": {"type": "strin"}}, "x-turnstile": {"banned_words": ["a"]}}
    with pytest.raises(InvalidSpecificationError) as malformed:
        served.ask(json=wrong)
    assert malformed.value.pointer == "/properties/n/type"


def test_a_budget_is_the_requests_own_and_leaves_room_for_the_end_token(served: Served) -> None:
    assert served.ask(json=CLOSED).max_tokens is None
    assert served.ask(json=extended(finish_within_budget=False)).max_tokens is None
    within = served.ask(json=extended(finish_within_budget=True), min_tokens=7, max_tokens=60)
    assert (within.max_tokens, within.min_tokens, within.finish_within_budget) == (59, 7, False)
    # Nothing about the language: the same automaton.
    assert within.key == served.ask(json=CLOSED).key
    by_key = served.ask(grammar=f"turnstile:{within.key}?finish_within_budget=1", max_tokens=60)
    assert by_key == dataclasses.replace(within, min_tokens=0)
    assert served.ask(grammar=f"turnstile:{within.key}?finish_within_budget=0").max_tokens is None
    for constraint in (
        {"json": extended(finish_within_budget=True)},
        {"grammar": f"turnstile:{within.key}?finish_within_budget=1"},
    ):
        with pytest.raises(RequestError, match="the shortest output found needs") as refused:
            served.ask(max_tokens=4, **constraint)
        assert (refused.value.status, refused.value.code) == (400, "budget_too_small")
        with pytest.raises(RequestError, match="needs max_tokens"):
            served.ask(max_tokens=None, **constraint)


def test_a_server_may_ask_it_of_every_request(tmp_path: Any) -> None:
    served = Served(str(tmp_path), finish_within_budget=True)
    assert served.ask(regex="a{3}", max_tokens=9).max_tokens == 8
    with pytest.raises(RequestError, match="the shortest output found needs"):
        served.ask(regex="[bcd]{30}", max_tokens=5)


def test_references_of_clients_are_looked_at(served: Served) -> None:
    key = served.ask(regex="x{3}y").key
    assert served.ask(grammar=f"turnstile:{key}", min_tokens=2) == Reference(key, min_tokens=2)
    x = (served.vocabulary.encode(b"x") or [])[0]
    assert served.ask(grammar=f"turnstile:{key}?emitted={x}").emitted_token_ids == (x,)
    for text, error, message in (
        ("0" * 64, RequestError, "no grammar has the key"),
        (f"{key}?emitted=0", InvalidSpecificationError, "emitted before"),
        (f"{key}?emitted={x}&max_tokens=1", RequestError, "shortest output"),
        (f"{key}?emitted={x},{x}&finish_within_budget=1", RequestError, "needs 2 more tokens, 1 are left"),
        (f"{key}?whitespace=any", InvalidSpecificationError, "no setting 'whitespace'"),
        (f"{key}?finish_within_budget=yes", InvalidSpecificationError, "finish_within_budget"),
        (key[:63], InvalidSpecificationError, "no grammar key"),
        ("", InvalidSpecificationError, "no grammar key"),
    ):
        with pytest.raises(error, match=message):
            served.ask(max_tokens=2, grammar="turnstile:" + text)
    # vLLM counts no emitted tokens, which are prompt to it.
    assert served.ask(max_tokens=3, grammar=f"turnstile:{key}?emitted={x},{x}&finish_within_budget=1").max_tokens == 4


def test_fields_of_vllm_that_are_spelled_otherwise_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"disable_any_whitespace.*x-turnstile"):
        read_request(Params(json=CLOSED, disable_any_whitespace=True))


def test_what_is_not_enforced_stands_in_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": r"(a)\1"}}
    with pytest.raises(UnsupportedFeatureError, match="back-reference"):
        served.ask(json=schema)
    for extension in ({}, {"banned_words": ["x"]}):
        caplog.clear()
        reference = served.ask(json={**schema, "x-turnstile": {"on_unsupported": "report", **extension}})
        assert served.matches(reference, '["a", "a"]') and not served.matches(reference, "[1]")
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert f"keyword not enforced: key={reference.key} pointer=/items/pattern reason=" in warning
    caplog.clear()
    served.ask(json=extended(on_unsupported="report"))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def _compiled(compiler: RemoteCompiler, request: Any) -> str:
    return await compiler.compile(request.specification, request.options)


def test_a_turnstile_server_has_options_of_its_own() -> None:
    compiler = RemoteCompiler(PluginSettings(url="http://127.0.0.1:9"))
    request = read_request(Params(json=extended(whitespace="flexible")))
    with pytest.raises(UnsupportedFeatureError, match="whitespace") as refused:
        asyncio.run(_compiled(compiler, request))
    assert refused.value.pointer == "/json/x-turnstile/whitespace"


def test_what_only_the_native_engine_does_is_refused_by_name() -> None:
    for name, value in (("conditional_sampling", {"particles": 4}), ("beam_search", {"num_beams": 2})):
        with pytest.raises(UnsupportedFeatureError, match="vLLM does not support") as refused:
            read_request(Params(json={"type": "integer", "x-turnstile": {name: value}}))
        assert refused.value.pointer == f"/json/x-turnstile/{name}"


def test_only_who_waited_for_a_compilation_is_kept_apart(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    class Spacing:
        def delay(self, came: float, ready: float) -> float:
            assert came <= ready
            ends.append(ready + 0.3)
            return 0.3

    monkeypatch.setattr(served.admission._compiler, "_spacing", Spacing())
    schema = {"enum": ["nobody", "has", "compiled", "this"]}
    served.ask(json=schema)
    assert len(ends) == 1 and time.monotonic() >= ends[0]
    served.ask(json=schema)
    assert len(ends) == 1
