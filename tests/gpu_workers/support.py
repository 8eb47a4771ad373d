"""Tiny models, a byte tokenizer and a hand-made automaton for the tests of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import LoadedModel, prepare
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, GrammarReference
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from grammar_workers import Vocabulary
from grammar_workers.types import Successor

torch.set_num_threads(1)

END = 256
"""The id of the end token; ids below it are the 256 bytes, ids above it do not exist (padding of the logits)."""
WIDTH = 272
KEY = "0" * 64
MAX_LENGTH = 96

_SMALL = {"vocab_size": WIDTH, "eos_token_id": END, "bos_token_id": None, "pad_token_id": None}
_GROUPED = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
    **_SMALL,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_GROUPED),
    "qwen3": lambda: Qwen3Config(head_dim=16, **_GROUPED),
    # Windows that prompts exceed, and caps that scores reach; Gemma's second layer sees everything.
    "mistral": lambda: MistralConfig(sliding_window=16, head_dim=8, **_GROUPED),
    "gemma2": lambda: Gemma2Config(
        head_dim=8, query_pre_attn_scalar=8, sliding_window=16, attn_logit_softcapping=5.0, **_GROUPED
    ),
    "gemma3": lambda: Gemma3TextConfig(
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        **_GROUPED,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_LENGTH,
        **_SMALL,
    ),
    "gpt2": lambda: GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=MAX_LENGTH, tie_word_embeddings=False, **_SMALL
    ),
}


def tiny_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Random weights, float64: results are then identical across batch shapes."""
    torch.manual_seed(seed)
    # transformers leaves soft caps out unless told to be eager.
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation=attention).eval()
    # Random initialisation is close to uniform; larger weights give outputs that depend on the prompt.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, id = byte, and an end token."""
    table = {character: byte for byte, character in _byte_characters().items()}
    backend = Tokenizer(models.BPE(vocab=table, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    )
    assert tokenizer.eos_token_id == END
    return tokenizer


def _byte_characters() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


@functools.cache
def byte_vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(byte_tokenizer(), WIDTH)


class TableFSM:
    """The TokenFSM contract over a table `{state: {token: next state}}`; `terminal` states also allow the end token.

    `sleeping` states hold their row back until `release` is set; `broken` ones raise.
    """

    key = "0" * 64
    end_state = 1_000_000
    initial_state = 0

    def __init__(
        self,
        table: Mapping[int, Mapping[int, int]],
        terminal: Sequence[int],
        *,
        sleeping: Sequence[int] = (),
        broken: Sequence[int] = (),
    ) -> None:
        self._table = table
        self._terminal = frozenset(terminal)
        self._sleeping = frozenset(sleeping)
        self._broken = frozenset(broken)
        self.release = threading.Event()
        self.read_states: list[int] = []

    def allowed_tokens(self, state: int) -> set[int]:
        if state in (-1, self.end_state):
            return set()
        return set(self._table.get(state, {})) | ({END} if state in self._terminal else set())

    def allowed_mask(self, state: int) -> NDArray[np.uint32]:
        self.read_states.append(state)
        if state in self._sleeping:
            assert self.release.wait(200)
        if state in self._broken:
            raise RuntimeError("this row cannot be built")
        bits = np.zeros(-(-WIDTH // 32) * 32, np.uint8)
        bits[list(self.allowed_tokens(state))] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def known_mask(self, state: int) -> NDArray[np.uint32] | None:
        return None

    def next_state(self, state: int, token_id: int) -> int:
        if token_id not in self.allowed_tokens(state):
            return -1
        return self.end_state if token_id == END else self._table[state][token_id]

    def forced_tokens(self, state: int, limit: int = 64) -> list[int]:
        run: list[int] = []
        while len(run) < limit:
            allowed = np.flatnonzero(np.unpackbits(self.allowed_mask(state).view(np.uint8), bitorder="little"))
            if len(allowed) != 1 or allowed[0] == END:
                break
            run.append(int(allowed[0]))
            state = self.next_state(state, run[-1])
        return run

    def is_terminal(self, state: int) -> bool:
        return state == self.end_state or state in self._terminal

    @property
    def vocabulary(self) -> Vocabulary:
        return byte_vocabulary()

    def successors(self, state: int, token_ids: Sequence[int]) -> list[Successor]:
        reached: dict[int, list[int]] = {}
        for token_id in token_ids:
            if (following := self.next_state(state, token_id)) >= 0:
                reached.setdefault(following, []).append(token_id)
        return [Successor(following, self.is_terminal(following), tokens) for following, tokens in reached.items()]

    def targets(self, state: int) -> tuple[list[int], NDArray[np.int32]]:
        following = self._table.get(state, {})
        distinct = list(dict.fromkeys(following.values()))
        places = np.full(WIDTH, -1, np.int32)
        for token_id, target in following.items():
            places[token_id] = distinct.index(target)
        return distinct, places

    def device_tables(self, **_: int) -> None:
        """None, as for an automaton that a device has no room for: its rows stay with the host."""

    def shortest_completion(self, state: int, limit: int = 1000) -> list[int]:
        ways: list[tuple[int, list[int]]] = [(state, [])]
        seen = {state}
        for reached, way in ways:  # grows meanwhile: breadth first
            if self.is_terminal(reached):
                return way
            for token_id, following in self._table[reached].items():
                if following not in seen:
                    seen.add(following)
                    ways.append((following, [*way, token_id]))
        raise AssertionError("a dead end")


def text_fsm(*texts: str, **options: Any) -> TableFSM:
    """Accepts exactly these texts."""
    table: dict[int, dict[int, int]] = {0: {}}
    terminal = []
    for text in texts:
        state = 0
        for byte in text.encode():
            state = table[state].setdefault(byte, len(table))
            table.setdefault(state, {})
        terminal.append(state)
    return TableFSM(table, terminal, **options)


def repeat_fsm(letters: str, **options: Any) -> TableFSM:
    """Accepts any number of these characters."""
    return TableFSM({0: {ord(letter): 0 for letter in letters}}, [0], **options)


def random_fsm(rng: np.random.Generator, states: int = 12) -> TableFSM:
    """Rows of every kind: one token, a few, many; some terminal. Every state reaches a terminal one."""
    table: dict[int, dict[int, int]] = {}
    for state in range(states):
        many = int(rng.choice([1, 3, 20, 200]))
        tokens = rng.choice(256, many, replace=False)
        table[state] = {int(token): int(rng.integers(0, states)) for token in tokens}
        table[state][int(tokens[0])] = state + 1
    table[states] = {int(token): int(rng.integers(0, states)) for token in rng.choice(256, 40, replace=False)}
    return TableFSM(table, [states, int(rng.integers(0, states))])


@functools.cache
def loaded(kind: str, config: EngineConfig) -> LoadedModel:
    """A prepared tiny model; its pool is shared by the engines of all tests with this configuration, one at a time."""
    return prepare(tiny_model(CONFIGS[kind]()), byte_tokenizer(), byte_vocabulary(), config)


@dataclass
class Result:
    """A finished generation, and how many terminal events it had."""

    outputs: list[GenerationOutput] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for output in self.outputs for token_id in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[-1].finish_reason

    @property
    def error(self) -> dict[str, Any] | None:
        return self.outputs[-1].error


def engine_config(**settings: Any) -> EngineConfig:
    """Small numbers, so that slots run out and prompts are cut."""
    defaults = {
        "dtype": "float64",
        "max_num_seqs": 4,
        "max_model_len": MAX_LENGTH,
        "long_prefill_token_threshold": 5,
        "max_num_batched_tokens": 12,
    }
    return EngineConfig(**{**defaults, **settings, "threads": 1})


@contextlib.contextmanager
def running_engine(
    kind: str = "llama",
    config: EngineConfig | None = None,
    fetch: Callable[[GrammarReference], Awaitable[Any]] | None = None,
    draft_model: LogitsDrafter | None = None,
) -> Iterator[Engine]:
    """An engine; afterwards nothing is left in it: every slot free, no sequence known, no value that could spread."""
    config = config or engine_config()
    with closed(Engine(loaded(kind, config), config, fetch or no_grammars, draft_model), config) as engine:
        yield engine


@contextlib.contextmanager
def closed(engine: Engine, config: EngineConfig) -> Iterator[Engine]:
    """Closes the engine in the end, which must then be as it was in the beginning."""
    try:
        yield engine
    finally:
        engine.close()
    assert engine.pool.free_slots == config.max_num_seqs
    assert not engine.scheduler.running and not engine.scheduler.waiting
    assert all(layer.isfinite().all() for layer in (*engine.pool.keys, *engine.pool.values))


async def no_grammars(grammar: GrammarReference) -> Any:
    raise AssertionError("no grammar is expected")


def grammars(**fsms: Any) -> Callable[[GrammarReference], Awaitable[Any]]:
    """Resolves a specification `{"name": ...}` to one of these automata."""

    async def fetch(grammar: GrammarReference) -> Any:
        return fsms[grammar.specification["name"]]

    return fetch


_numbers = iter(range(10**9))


def request(prompt: str | list[int], *, grammar: str | None = None, **settings: Any) -> GenerationRequest:
    """A request; `grammar` names one of `grammars(...)`, other settings are sampling's or the request's own."""
    own = {name: settings.pop(name) for name in ("choice_index", "emitted_token_ids", "timeout_s") if name in settings}
    reference = None if grammar is None else {"key": KEY, "specification": {"name": grammar}}
    return GenerationRequest.model_validate(
        {"request_id": f"r{next(_numbers)}", "prompt": prompt, "grammar": reference, "sampling": settings, **own}
    )


async def collect(engine: Engine, one: GenerationRequest, *, after_steps: int = 0) -> Result:
    """Runs one request to its end, entering when the engine has taken `after_steps` steps, or after a while."""
    for _ in range(50):
        if engine.statistics.steps >= after_steps:
            break
        await asyncio.sleep(0.001)
    result = Result([output async for output in engine.generate(one)])
    assert [output.finish_reason is not None for output in result.outputs].count(True) == 1
    return result


def run(engine: Engine, *requests: GenerationRequest, stagger: int = 0, limit_s: float = 250) -> list[Result]:
    """Runs requests together; the i-th enters after `i * stagger` further steps. Longer than `limit_s` is a failure."""

    async def everything() -> list[Result]:
        base = engine.statistics.steps
        return await asyncio.gather(
            *(collect(engine, one, after_steps=base + i * stagger) for i, one in enumerate(requests))
        )

    return asyncio.run(asyncio.wait_for(everything(), limit_s))
