"""Every way into vLLM's engine, with vLLM's own classes of requests and no engine: what gets there, what is refused."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output import backend_outlines
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from deployments.vllm import clients, handlers, installation
from deployments.vllm.settings import PluginSettings
from gpu_workers.vllm.reference import Reference
from grammar_workers import GrammarError, compile_grammar
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.grammar_workers import nestings
from tests.vllm.models import reordered_model
from tests.vllm.server import MODEL

# Set NESTINGS=500 for a long run.
NESTINGS = int(os.environ.get("NESTINGS", "25"))
WRONG = {"type": "strin"}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"}}


def config_of(model: Path, backend: str = "outlines", reasoning_parser: str = "") -> Any:
    """What is read of vLLM's configuration."""
    return SimpleNamespace(
        structured_outputs_config=SimpleNamespace(backend=backend, reasoning_parser=reasoning_parser),
        model_config=SimpleNamespace(tokenizer=str(model), trust_remote_code=False),
        speculative_config=None,
    )


CONFIG = config_of(MODEL)


def sampling(**constraint: Any) -> SamplingParams:
    return SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(**constraint))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[clients.Clients]:
    """Clients of an engine of the embedded model."""
    one = clients.Clients(PluginSettings(store=f"file://{tmp_path_factory.mktemp('store')}"))
    one.start(CONFIG).wait_ready()
    yield one


class Processor:
    """In the place of vLLM's `InputProcessor`: keeps what it gets."""

    def __init__(self, config: Any = CONFIG) -> None:
        self.vllm_config = config
        self.got: list[Any] = []

    def process_inputs(self, request_id: str, prompt: Any, params: Any, *, resumable: bool = False) -> None:
        self.got.append(params)


class Engine(Processor):
    """In the place of `AsyncLLM`."""

    async def add_request(self, request_id: str, prompt: Any, params: Any, **keywords: Any) -> Any:
        self.got.append(params)
        return keywords


@pytest.fixture(scope="module")
def wrapped(known: clients.Clients) -> None:
    clients._wrap_process_inputs(Processor, known)
    clients._wrap_add_request(Engine, known)


pytestmark = pytest.mark.usefixtures("wrapped")


def reference(params: Any) -> Reference:
    return Reference.parse(params.structured_outputs.grammar)


def test_the_callers_parameters_stay_as_they_are() -> None:
    processor, params = Processor(), sampling(regex="[ab]{1,40}")
    before = copy.deepcopy(params)
    for least in (0, 30, 2):
        params.min_tokens = before.min_tokens = least
        processor.process_inputs("r", "prompt", params)
        assert params == before
    assert [reference(got).min_tokens for got in processor.got] == [0, 30, 2]


def test_what_async_llm_admitted_passes() -> None:
    engine, processor = Engine(), Processor()
    asyncio.run(engine.add_request("r", "prompt", sampling(regex="a+")))
    processor.process_inputs("r", "prompt", engine.got[0])
    assert processor.got[0] is engine.got[0]


def test_in_a_running_event_loop() -> None:
    """As `LLM.chat` in a notebook."""
    processor = Processor()

    async def cell() -> None:
        processor.process_inputs("r", "prompt", sampling(json={"type": "integer"}))

    asyncio.run(cell())
    assert reference(processor.got[0])


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
def test_an_engine_without_the_flag_gets_what_was_asked(backend: str) -> None:
    config = config_of(MODEL, backend)
    processor, engine, params = Processor(config), Engine(config), sampling(json=WRONG)
    processor.process_inputs("r", "prompt", params, resumable=True)
    assert asyncio.run(engine.add_request("r", "prompt", params)) == {}
    assert processor.got == engine.got == [params] and processor.got[0] is params is engine.got[0]


def test_each_tokenizer_has_its_own_vocabulary(known: clients.Clients, tmp_path: Path) -> None:
    other = config_of(reordered_model(tmp_path / "reordered"))
    known.start(other).wait_ready()
    keys = set()
    for config in (CONFIG, other, CONFIG, other):
        processor = Processor(config)
        processor.process_inputs("r", "prompt", sampling(regex="ab+"))
        keys.add(reference(processor.got[0]).key)
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"json": {"type": "integer"}}, "12"),
        ({"json": json.dumps({"type": "integer"})}, "12"),
        ({"json_object": True}, "{}"),
        ({"regex": "a+"}, "aa"),
        ({"choice": ["yes", "no"]}, "no"),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, "(x)"),
        ({"structural_tag": json.dumps(TAG)}, "<a>"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_beam_search_takes_every_constraint(known: clients.Clients, constraint: dict[str, Any], text: str) -> None:
    """By vLLM's key of a constraint, for each beam at each step anew."""
    from vllm.v1.structured_output.request import get_structured_output_key

    backend = installation._beam_backend(known, None, CONFIG, tokenizer=None, vocab_size=1024)
    kind, spec = get_structured_output_key(StructuredOutputsParams(**constraint))
    tokens = load_vocabulary(str(MODEL)).encode(text.encode())
    for many in range(len(tokens) + 1):
        grammar = backend.compile_grammar(kind, spec)
        assert grammar.accept_tokens("beam", tokens[:many]) and not grammar.is_terminated()
        bitmask = backend.allocate_token_bitmask(1)
        grammar.fill_bitmask(bitmask, 0)
        wanted = (tokens[many : many + 1] or list(load_vocabulary(str(MODEL)).eos_token_ids))[0]
        assert bitmask[0][wanted // 32] >> (wanted % 32) & torch.ones((), dtype=torch.int32)
    with pytest.raises(VLLMValidationError, match="invalid_grammar"):
        backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(WRONG))
    backend.destroy()


def test_structural_tags_are_not_compiled_with_xgrammar(known: clients.Clients) -> None:
    """Its check blocks the event loop, and rejects Lark without a reason."""
    from vllm.entrypoints.generate.base import protocol

    handlers.wrap_handlers(known)
    content = {"type": "grammar", "syntax": "lark", "grammar": "start: start 'a' | 'b'"}
    tag = {"type": "structural_tag", "format": {**TAG["format"], "content": content}}
    protocol.validate_structured_outputs_structural_tag({"structural_tag": json.dumps(tag)})
    protocol.validate_structural_tag_response_format(tag)


def test_nested_grammars_schemas_and_tokens(known: clients.Clients) -> None:
    """Random nestings by vLLM's own key of a constraint, judged by `lark` and `jsonschema`."""
    from vllm.v1.structured_output.request import get_structured_output_key

    vocabulary = load_vocabulary(str(MODEL))
    backend = installation._beam_backend(known, None, CONFIG, tokenizer=None, vocab_size=1024)
    compared = 0
    for index in range(NESTINGS):
        rng = random.Random(f"vllm {index}")
        nesting = nestings.Nesting(rng)
        try:
            fsm = compile_grammar(nesting.specification, vocabulary)
        except GrammarError:
            continue
        text = nestings.walked(fsm, rng, 16)
        if nesting.specification["type"] == "grammar":
            constraint = {"grammar": nesting.specification["text"]}
        else:
            constraint = {"structural_tag": json.dumps(nesting.specification)}
        kind, spec = get_structured_output_key(StructuredOutputsParams(**constraint))
        for one in (text, nestings.changed(text, rng)):
            tokens = [*nestings.encoded(one, vocabulary), *vocabulary.eos_token_ids]
            assert backend.compile_grammar(kind, spec).accept_tokens("", tokens) == nesting.allows(one), (index, one)
            compared += 1
    assert compared > NESTINGS
    backend.destroy()


def test_without_the_flag_outlines_is_itself(known: clients.Clients) -> None:
    """Its class, which `auto` falls back to, and its check of requests."""

    def outlines(vllm_config: Any, *, tokenizer: Any, vocab_size: int) -> Any:
        return vllm_config, tokenizer, vocab_size

    config = config_of(MODEL, "auto")
    made = installation._beam_backend(known, outlines, config, tokenizer="t", vocab_size=7)
    assert made == (config, "t", 7)
    with pytest.raises(VLLMValidationError, match=r"[Ll]ook-?[Aa]round"):
        backend_outlines.validate_structured_output_request_outlines(sampling(regex="(?=a)b"))


async def parts() -> Any:
    yield "a part"


def test_streamed_input_takes_no_constraint() -> None:
    with pytest.raises(VLLMValidationError, match="whose input is streamed"):
        asyncio.run(Engine().add_request("r", parts(), sampling(regex="a")))
    with pytest.raises(VLLMValidationError, match="whose input is streamed"):
        Processor().process_inputs("r", "a part", sampling(regex="a"), resumable=True)
    free, engine = SamplingParams(), Engine()
    asyncio.run(engine.add_request("r", parts(), free))
    assert engine.got == [free]


@pytest.mark.parametrize(
    ("parser", "said", "expected"),
    [
        ("", {}, {}),
        ("qwen3", {}, {"reasoning_ended": True}),
        ("qwen3", {"reasoning_ended": False}, {"reasoning_ended": False}),
        ("qwen3", {"reasoning_parser_kwargs": {"a": 1}}, {"reasoning_parser_kwargs": {"a": 1}}),
    ],
)
def test_what_is_no_chat_is_constrained_from_its_start(
    parser: str, said: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Chats say something about their reasoning where there is a parser; completions do not (vLLM issue 57726)."""
    engine = Engine(config_of(MODEL, reasoning_parser=parser))
    assert asyncio.run(engine.add_request("r", "prompt", sampling(regex="a"), **said)) == expected
    assert asyncio.run(engine.add_request("r", "prompt", SamplingParams(), **said)) == said


class Handler:
    """In the place of one of vLLM's handlers that answer with a stream."""

    def __init__(self, known: clients.Clients) -> None:
        self.engine_client = SimpleNamespace(vllm_config=CONFIG)
        self.begun = False
        self._known = known

    async def create(self, request: Any) -> Any:
        clients.look_ahead(self._known, CONFIG, request.params)

        async def stream() -> Any:
            self.begun = True
            yield "a chunk"

        return stream()


handlers._wrap_stream(Handler, "create")


@pytest.mark.parametrize(
    ("constraint", "error"),
    [({"json": WRONG}, VLLMValidationError), ({"grammar": f"turnstile:{'0' * 64}"}, VLLMNotFoundError)],
)
def test_a_stream_is_refused_before_it_begins(
    known: clients.Clients, constraint: dict[str, Any], error: type[Exception]
) -> None:
    handler = Handler(known)
    with pytest.raises(error):
        asyncio.run(handler.create(SimpleNamespace(stream=True, params=sampling(**constraint))))
    assert not handler.begun and clients.ahead.get() is None


def test_a_stream_that_is_not_refused_begins(known: clients.Clients) -> None:
    async def chunks() -> list[str]:
        stream = await Handler(known).create(SimpleNamespace(stream=True, params=sampling(regex="a")))
        return [chunk async for chunk in stream]

    assert asyncio.run(chunks()) == ["a chunk"]


@pytest.mark.parametrize(
    ("front_end", "backend", "use", "refused"),
    [
        (True, "outlines", "OPENAI_API_SERVER", True),
        (True, "outlines", "LLM_CLASS", False),
        (True, "auto", "OPENAI_API_SERVER", False),
        (False, "outlines", "OPENAI_API_SERVER", False),
    ],
)
def test_the_rust_front_end_is_refused_where_it_would_take_our_requests(
    monkeypatch: pytest.MonkeyPatch, front_end: bool, backend: str, use: str, refused: bool
) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", str(int(front_end)))
    message = ""
    try:
        installation._refuse_rust(config_of(MODEL, backend), SimpleNamespace(name=use))
    except ValueError as error:
        message = str(error)
    assert ("unset VLLM_USE_RUST_FRONTEND" in message) == refused
