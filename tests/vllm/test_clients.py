"""What a program does with vLLM's classes in its own process: beams, notebooks, its own parameters, several models."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.vllm.models import reordered_model
from tests.vllm.offline import EngineProcess
from tests.vllm.server import MODEL

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}, "kind": {"enum": ["person", "robot"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}
PATTERN = "[a-c]{3}-[0-9]{1,4}!"
QUESTION = "Alice Moore is 34 years old."

_engines: dict[tuple[str, str], Any] = {}
"""In the process of the engines: the one that runs, by its model and backend."""


def engine(model: str, backend: str = "outlines") -> Any:
    from vllm import LLM

    if (known := _engines.get((model, backend))) is None:
        while _engines:
            _engines.popitem()[1].llm_engine.engine_core.shutdown()
        gc.collect()
        known = _engines[model, backend] = LLM(
            model=model,
            max_model_len=512,
            max_num_seqs=8,
            enforce_eager=True,
            dtype="float32",
            structured_outputs_config={"backend": backend},
        )
    return known


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path_factory.mktemp("clients"))
    yield process
    process.close()


def beams(model: str, constraint: dict[str, Any]) -> list[tuple[str, bool]]:
    """The text of each beam, and whether it has ended."""
    from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

    llm = engine(model)
    params = BeamSearchParams(3, 60, structured_outputs=StructuredOutputsParams(**constraint))
    tokenizer = llm.get_tokenizer()
    (found,) = llm.beam_search([{"prompt": QUESTION}], params)
    prompt = len(tokenizer.encode(QUESTION))
    return [
        (
            tokenizer.decode(beam.tokens[prompt:], skip_special_tokens=True),
            beam.tokens[-1] == tokenizer.eos_token_id,
        )
        for beam in found.sequences
    ]


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"json": SCHEMA}, None),
        ({"json": json.dumps(SCHEMA)}, None),
        ({"regex": PATTERN}, PATTERN),
        ({"choice": ["yes", "no", "maybe"]}, "yes|no|maybe"),
        ({"grammar": 'root ::= "(" root ")" | [a-c]'}, r"\(*[a-c]\)*"),
        (
            {
                "structural_tag": json.dumps(
                    {"type": "structural_tag", "format": {"type": "regex", "pattern": PATTERN}},
                )
            },
            PATTERN,
        ),
        ({"json_object": True}, r"(?s)\{.*"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_beams_match_the_constraint(process: EngineProcess, constraint: dict[str, Any], pattern: str | None) -> None:
    found = process.call(beams, str(MODEL), constraint)
    assert found  # fewer than asked for where few of the likeliest tokens are allowed
    for text, ended in found:
        if pattern is not None:
            assert not ended or re.fullmatch(pattern, text), text
        elif ended:
            jsonschema.validate(json.loads(text), SCHEMA)
    finite = "json" in constraint or "regex" in constraint or "choice" in constraint
    assert not finite or any(ended for _, ended in found)


def test_beams_end_within_max_tokens_where_they_must(process: EngineProcess) -> None:
    within = {"x-turnstile": {"finish_within_budget": True}}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "more": {"type": "string"}}, **within}
    schema["required"] = [*SCHEMA.get("required", []), "more"]
    found = process.call(beams, str(MODEL), {"json": schema})
    assert found
    for text, ended in found:
        assert ended, text
        jsonschema.validate(json.loads(text), schema)


def refused_beams(model: str) -> str:
    try:
        beams(model, {"json": {"type": "strin"}})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_refusal_names_the_place_in_a_beam_search_too(process: EngineProcess) -> None:
    assert re.search("VLLMValidationError: invalid_grammar: .*/type", process.call(refused_beams, str(MODEL)))


def chat_in_a_loop(model: str) -> str:
    """As in a notebook, whose cells run inside of an event loop."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    async def cell() -> str:
        params = SamplingParams(max_tokens=100, structured_outputs=StructuredOutputsParams(json=SCHEMA))
        (output,) = engine(model).chat([{"role": "user", "content": QUESTION}], params, use_tqdm=False)
        return str(output.outputs[0].text)

    return asyncio.run(cell())


def test_a_chat_inside_of_a_running_event_loop(process: EngineProcess) -> None:
    jsonschema.validate(json.loads(process.call(chat_in_a_loop, str(MODEL))), SCHEMA)


def same_parameters_again(model: str) -> tuple[list[str], dict[str, Any]]:
    """Texts of three calls with one object, whose `min_tokens` change between them, and what is in it in the end."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    constraint = StructuredOutputsParams(regex="[ab]{1,40}")
    params = SamplingParams(max_tokens=60, seed=3, structured_outputs=constraint)
    texts = []
    for least in (0, 30, 0):
        params.min_tokens = least
        (output,) = engine(model).generate(QUESTION, params, use_tqdm=False)
        texts.append(output.outputs[0].text)
    assert params.structured_outputs is constraint
    return texts, dict(vars(constraint))


def test_the_callers_parameters_stay_as_they_are(process: EngineProcess) -> None:
    (first, longer, again), left = process.call(same_parameters_again, str(MODEL))
    assert first == again and all(re.fullmatch("[ab]{1,40}", text) for text in (first, longer))
    assert len(longer) >= 30
    assert left["regex"] == "[ab]{1,40}" and left["grammar"] is None and left["_backend"] is None


def answer(model: str, constraint: dict[str, Any]) -> str:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = SamplingParams(max_tokens=100, seed=1, structured_outputs=StructuredOutputsParams(**constraint))
    (output,) = engine(model).generate(QUESTION, params, use_tqdm=False)
    return str(output.outputs[0].text)


def test_a_second_model_has_its_own_vocabulary(process: EngineProcess, tmp_path: Path) -> None:
    """Behind the first one, whose compilers are there still."""
    for model in (str(MODEL), str(reordered_model(tmp_path / "reordered"))):
        assert re.fullmatch(PATTERN, process.call(answer, model, {"regex": PATTERN})), model


def names_of_outlines(model: str) -> tuple[str, str]:
    """By which classes an engine without the flag makes masks, where `auto` falls back to outlines."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = engine(model, "auto")
    # xgrammar and guidance both refuse this keyword.
    schema = {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "properties": {}}
    constraint = StructuredOutputsParams(json=json.dumps(schema))
    llm.generate(QUESTION, SamplingParams(max_tokens=8, structured_outputs=constraint), use_tqdm=False)
    manager = llm.llm_engine.engine_core.engine_core.structured_output_manager
    return constraint._backend or "", f"{type(manager.backend).__module__}.{type(manager.backend).__name__}"


def test_without_the_flag_vllm_falls_back_to_outlines(process: EngineProcess) -> None:
    chosen, made = process.call(names_of_outlines, str(MODEL))
    assert (chosen, made) == ("outlines", "vllm.v1.structured_output.backend_outlines.OutlinesBackend")


def streamed_input(model: str) -> list[str]:
    """What becomes of a constraint of the whole request, of one part of its input, and of none."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.engine.protocol import StreamingInput
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
    from vllm.v1.engine.async_llm import AsyncLLM

    constrained = SamplingParams(
        max_tokens=4,
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=StructuredOutputsParams(regex="a+"),
    )
    free = SamplingParams(max_tokens=4, output_kind=RequestOutputKind.DELTA)

    async def parts(params: Any) -> Any:
        for text in ("Alice is", " 34"):
            yield StreamingInput(prompt=text, sampling_params=params)

    async def outcome(llm: Any, name: str, whole: Any, part: Any) -> str:
        try:
            async for _ in llm.generate(parts(part), whole, name):
                pass
        except Exception as error:
            return str(error)
        return "ended"

    async def run() -> list[str]:
        arguments = AsyncEngineArgs(
            model=model,
            max_model_len=512,
            enforce_eager=True,
            dtype="float32",
            structured_outputs_config={"backend": "outlines"},
        )
        llm = AsyncLLM.from_engine_args(arguments)
        try:
            ways = [(constrained, None), (free, constrained), (free, None)]
            return [await outcome(llm, str(number), *way) for number, way in enumerate(ways)]
        finally:
            llm.shutdown()

    return asyncio.run(run())


def test_streamed_input_takes_no_constraint(process: EngineProcess) -> None:
    whole, part, free = process.call(streamed_input, str(MODEL))
    assert "whose input is streamed" in whole and "whose input is streamed" in part
    assert free == "ended"


def rust_front_end(model: str, backend: str) -> str:
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    try:
        arguments = AsyncEngineArgs(model=model, dtype="float32", structured_outputs_config={"backend": backend})
        arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except ValueError as error:
        return str(error)
    return ""


def test_the_rust_front_end_is_refused_with_the_flag_alone(tmp_path: Path) -> None:
    """In a process whose vLLM has been told of it before its first engine, as a server's is."""
    process = EngineProcess(tmp_path, VLLM_USE_RUST_FRONTEND="1")
    try:
        assert "unset VLLM_USE_RUST_FRONTEND" in process.call(rust_front_end, str(MODEL), "outlines")
        assert process.call(rust_front_end, str(MODEL), "auto") == ""
    finally:
        process.close()
