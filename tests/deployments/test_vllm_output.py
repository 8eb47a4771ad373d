"""What our side of vLLM's engine makes of its tokens, without vLLM."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import pytest

from deployments.vllm.output import OutputReader
from deployments.vllm.sampling import REFUSED, SAME, check_supported
from gpu_workers.request import GenerationRequest, RequestError, SamplingParameters
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from tests.documents import REPOSITORY
from tests.grammar_workers.vocabularies import bytes_vocabulary


@dataclass
class Choice:
    """As vLLM's `Logprob`."""

    logprob: float


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return bytes_vocabulary()


def spelled(vocabulary: Vocabulary, text: str) -> list[int]:
    by_bytes = {vocabulary.token_bytes(token_id): token_id for token_id in range(vocabulary.size)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def reader(
    vocabulary: Vocabulary, pattern: str | None = None, emitted: str = "", max_tokens: int = 50, **sampling: Any
) -> OutputReader:
    fsm: TokenFSM | None = None
    if pattern is not None:
        fsm = compile_grammar({"type": "regex", "pattern": pattern}, vocabulary)
    request = GenerationRequest.model_validate(
        {
            "request_id": "r",
            "prompt": "x",
            "sampling": {"max_tokens": max_tokens, **sampling},
            "grammar": None if pattern is None else {"key": "0" * 64},
            "emitted_token_ids": spelled(vocabulary, emitted),
        }
    )
    return OutputReader(request, vocabulary, fsm, max_tokens=max_tokens, prompt_tokens=7)


def test_text_comes_as_soon_as_it_is_certain(vocabulary: Vocabulary) -> None:
    one = reader(vocabulary, stop=["END"])
    assert one.take(spelled(vocabulary, "abE"), None).text == "ab"
    assert one.take(spelled(vocabulary, "N"), None).text == ""
    last = one.take(spelled(vocabulary, "D and what nobody asked for"), None)
    assert (last.text, last.finish_reason, len(last.token_ids)) == ("", "stop", 1)


def test_a_stop_string_under_a_grammar_counts_where_the_output_may_end(vocabulary: Vocabulary) -> None:
    one = reader(vocabulary, "a+;(b+;)?", stop=[";", "b"])
    assert one.take(spelled(vocabulary, "aa;"), None).finish_reason is None
    last = one.take(spelled(vocabulary, "b"), None)
    assert last.finish_reason == "stop"


def test_an_output_cut_where_only_an_end_could_follow_is_complete(vocabulary: Vocabulary) -> None:
    for pattern, text, reason in (("abc", "abc", "stop"), ("abc?", "ab", "length"), ("abcd", "abc", "length")):
        one = reader(vocabulary, pattern)
        assert one.end(one.take(spelled(vocabulary, text), None), "length").finish_reason == reason
    one = reader(vocabulary)
    assert one.end(one.take(spelled(vocabulary, "abc"), None), "length").finish_reason == "length"


def test_a_resumption_is_where_the_first_run_would_be(vocabulary: Vocabulary) -> None:
    one = reader(vocabulary, emitted="ab E", max_tokens=6, stop=["END"])
    assert (one.left, one.finish_reason) == (2, None)
    assert one.take(spelled(vocabulary, "N!"), None).text == "EN!"
    assert reader(vocabulary, emitted="a END", stop=["END"]).finish_reason == "stop"
    assert reader(vocabulary, emitted="abc", max_tokens=3).finish_reason == "length"
    assert reader(vocabulary, "abc", emitted="abc", max_tokens=3).finish_reason == "stop"
    with pytest.raises(RequestError, match="cannot resume") as refused:
        reader(vocabulary, "abc", emitted="ax")
    assert refused.value.code == "invalid_resume"


def test_a_budget_that_nothing_fits_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError) as refused:
        reader(vocabulary, "a{9}", max_tokens=1, finish_within_budget=True)
    assert (refused.value.status, refused.value.code) == (400, "budget_too_small")
    assert reader(vocabulary, "a{9}", max_tokens=9, finish_within_budget=True).left == 9


@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_reports_are_sorted_and_leave_out_what_is_forbidden(vocabulary: Vocabulary, wanted: int) -> None:
    one = reader(vocabulary, logprobs=wanted)
    a, b, c = spelled(vocabulary, "abc")
    output = one.take([b], [{b: Choice(-2.0), c: Choice(-0.5), a: Choice(-2.0), 0: Choice(float("-inf"))}])
    (report,) = output.reports
    assert (report["token_id"], report["logprob"], report["text"]) == (b, -2.0, "b")
    assert [choice["token_id"] for choice in report["top"]] == [c, *sorted((a, b))][:wanted]


@pytest.mark.parametrize(
    ("reason", "code", "status"), [("abort", "unavailable", 503), ("error", "internal_error", 500)]
)
def test_what_is_no_end_is_an_error(vocabulary: Vocabulary, reason: str, code: str, status: int) -> None:
    one = reader(vocabulary)
    with pytest.raises(RequestError) as failed:
        one.end(one.take([], None), reason)
    assert (failed.value.code, failed.value.status) == (code, status)


def test_every_setting_is_passed_on_or_refused() -> None:
    """In the adapter of vLLM or in the text that both engines share."""
    sources = [*(REPOSITORY / "deployments" / "vllm").glob("*.py"), REPOSITORY / "gpu_workers/sequence/output_text.py"]
    read = {
        node.attr
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    parts_of_searches = {"probe"}  # set by the native engine alone
    assert set(SamplingParameters.model_fields) - read - set(REFUSED) - set(SAME) - parts_of_searches == set()


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_vllm_has_no_way_to_honour_are_named(name: str) -> None:
    values: dict[str, Any] = {
        "beam_search": {"num_beams": 2},
        "conditional_sampling": {"particles": 2},
        "banned_words": {"words": ["x"]},
    }
    with pytest.raises(RequestError, match="vLLM") as refused:
        check_supported(SamplingParameters.model_validate({name: values.get(name, True)}))
    assert (refused.value.param, refused.value.status) == (name, 400)
    check_supported(SamplingParameters())
