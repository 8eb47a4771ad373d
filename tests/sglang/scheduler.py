"""A scheduler of SGLang as far as grammars are concerned, over random logits and random drafts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, GrammarMask, InvalidGrammarObject
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import _ConfigBag, get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from tests.sglang.source import take

SPECULATION = take(
    "sglang/srt/speculative/spec_utils.py",
    ["traverse_tree", "generate_token_bitmask"],
    {"torch": torch, "time": time, "logger": logging.getLogger(__name__), "TREE_TRAVERSE_TIME_THRESHOLD": 1e9},
)
ACCEPT = take(
    "sglang/srt/managers/scheduler_components/batch_result_processor.py",
    ["_accept_grammar_tokens"],
    {
        "FINISH_ABORT": lambda message, *about: message,
        "HTTPStatus": HTTPStatus,
        "logger": logging.getLogger(__name__),
    },
)["_accept_grammar_tokens"]
PREBUILT = take(
    "sglang/srt/disaggregation/decode_schedule_batch_mixin.py",
    ["process_prebuilt"],
    {
        "HTTPStatus": HTTPStatus,
        "torch": torch,
        "checkpoint_kv_cache": lambda *about: None,
        "async_h2d": lambda tokens, **about: tokens,
    },
)["process_prebuilt"]
_FIELDS = ("json_schema", "regex", "ebnf", "structural_tag")


@dataclasses.dataclass
class Request:
    """The fields of SGLang's `Req` that its modules of constrained decoding read."""

    sampling_params: SimpleNamespace
    require_reasoning: bool = False
    rid: str = "request"
    origin_input_ids: Sequence[int] = ()
    grammar: Any = None
    grammar_key: Any = None
    grammar_wait_ct: int = 0
    output_ids: list[int] = dataclasses.field(default_factory=list)
    to_finish: str | None = None
    ended: bool = False

    def finished(self) -> bool:
        return self.ended or self.to_finish is not None

    def set_finish_with_abort(self, error_msg: str) -> None:
        self.to_finish = error_msg


def request(field: str | None, text: str | None, reasoning: bool = False, **custom: Any) -> Request:
    """Return a request that `field` of its sampling parameters constrains."""
    constraints = {name: text if name == field else None for name in _FIELDS}
    parameters = SimpleNamespace(**constraints, ebnf_full_assistant=False, custom_params=custom or None)
    return Request(parameters, reasoning)


@contextlib.contextmanager
def context(
    model: str, reasoning_parser: str | None = None, strict: bool = False, **parallel: int
) -> Iterator[SimpleNamespace]:
    """SGLang's configuration of one scheduler process with our backend; yields its `server_args`."""
    load_plugins()
    serving, kernel, exec_ = _ConfigBag("serving"), _ConfigBag("exec.kernel"), _ConfigBag("exec")
    serving._set("skip_tokenizer_init", False)
    serving._set("reasoning_parser", reasoning_parser)
    serving._set("enable_strict_thinking", strict)
    kernel._set("grammar_backend", "turnstile")
    exec_._set_sub("kernel", kernel)
    known, before = get_context(), get_context()._config_bags
    known._config_bags = {"serving": serving, "exec": exec_}
    ranks = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_dp_size": 1}
    try:
        with get_parallel().override(**{**ranks, **parallel}):
            yield SimpleNamespace(tokenizer_path=None, model_path=model)
    finally:
        known._config_bags = before


class Scheduler:
    """Runs requests with SGLang's `GrammarManager`, one after the other or several as a batch.

    Args:
        server_args: What `context` yields.
        tokenizer: The model's tokenizer.
        vocab_size: Width of the logits.
        group: SGLang's group of the ranks that run the same batches, and torch's. None: there is one rank.
    """

    def __init__(self, server_args: Any, tokenizer: Any, vocab_size: int, group: Any = None, seed: int = 0) -> None:
        alone = SimpleNamespace(world_size=1, first_rank=0, is_first_rank=True)
        self.end_ids = {tokenizer.eos_token_id}
        self.server_args = server_args
        self.tokenizer = tokenizer
        self.model_config = SimpleNamespace(vocab_size=vocab_size, hf_eos_token_id=self.end_ids, think_end_ids=None)
        self.dp_tp_group, self.dp_tp_cpu_group = (alone, None) if group is None else group
        self.pp_group = None
        self.rng = np.random.default_rng(seed)
        self.manager = GrammarManager(self)  # type: ignore[arg-type]

    def admit(self, requests: Sequence[Request], seconds: float = 120) -> None:
        """Bring requests to where they could run, or have been refused."""
        waiting = [one for one in requests if self.manager.process_req_with_grammar(one)]  # type: ignore[arg-type]
        deadline = time.monotonic() + seconds
        ready: list[Any] = []
        while len(ready) < len(waiting):
            assert time.monotonic() < deadline
            ready += self.manager.get_ready_grammar_requests()

    def run(self, requests: Sequence[Request], most: int = 400, drafts: int = 0) -> None:
        """Generate until all have ended, with trees of `drafts` drafts in each step."""
        for _ in range(most):
            live = [one for one in requests if not one.finished()]
            if not live:
                return
            if drafts:
                self.speculative_step(live, drafts)
            else:
                self.step(live)

    def step(self, batch: Sequence[Request]) -> None:
        """One token for each request."""
        logits = self.logits(len(batch))
        info = sampling_info(len(batch), self.model_config.vocab_size, [one.grammar for one in batch])
        info.update_regex_vocab_mask()
        if info.grammar_mask is not None:
            info.grammar_mask.apply(logits)
        for one, row in zip(batch, logits, strict=True):
            self.commit(one, [int(row.argmax())])

    def speculative_step(self, batch: Sequence[Request], drafts: int) -> None:
        """One verified way through a tree of drafts for each request, and a token after it."""
        nodes, width = drafts + 1, self.model_config.vocab_size
        children, siblings, tokens = self.tree(batch, nodes)
        mask, grammar = SPECULATION["generate_token_bitmask"](batch, children, siblings, tokens, width)
        logits = self.logits(len(batch) * nodes)
        if mask is not None:
            GrammarMask(grammar, mask).apply(logits)
        for place, one in enumerate(batch):
            rows = logits[place * nodes : (place + 1) * nodes]
            self.commit(one, verified(rows, children[place], siblings[place], tokens[place]))

    def tree(self, batch: Sequence[Request], nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Random trees [requests, nodes]: first child, next sibling (-1: none) and token of each node."""
        shape = (len(batch), nodes)
        children, siblings = torch.full(shape, -1), torch.full(shape, -1)
        tokens = torch.from_numpy(self.rng.integers(0, self.model_config.vocab_size, shape))
        for row in range(len(batch)):
            last: dict[int, int] = {}
            for node in range(1, nodes):
                parent = int(self.rng.integers(max(0, node - 3), node))
                if parent in last:
                    siblings[row, last[parent]] = node
                else:
                    children[row, parent] = node
                last[parent] = node
            self.guess(batch[row], children[row], siblings[row], tokens[row])
        return children, siblings, tokens

    def guess(self, one: Request, children: torch.Tensor, siblings: torch.Tensor, tokens: torch.Tensor) -> None:
        """Make most drafts of a tree such as the grammar allows: a random one would hardly ever be tried."""
        if one.grammar is None:
            return

        def below(parent: int) -> None:
            if one.grammar.is_terminated():
                return
            mask = one.grammar.allocate_vocab_mask(self.model_config.vocab_size, 1, "cpu")
            one.grammar.fill_vocab_mask(mask, 0)
            allowed = np.flatnonzero(np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little"))
            allowed = allowed[allowed < self.model_config.vocab_size]
            node = int(children[parent])
            while node != -1:
                if self.rng.random() < 0.8:
                    tokens[node] = int(self.rng.choice(allowed))
                    with contextlib.suppress(ValueError):  # a grammar past its limits
                        one.grammar.accept_token(int(tokens[node]))
                        below(node)
                        one.grammar.rollback(1)
                node = int(siblings[node])

        below(0)

    def logits(self, rows: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.normal(size=(rows, self.model_config.vocab_size)).astype(np.float32))

    def commit(self, one: Request, tokens: list[int]) -> None:
        """As SGLang accepts what was sampled, and ends a request."""
        kept = tokens if one.grammar is None else ACCEPT(None, one, tokens)
        one.output_ids += kept
        if one.grammar is not None:
            one.ended = one.to_finish is None and (bool(self.end_ids.intersection(kept)) or one.grammar.is_terminated())
            one.grammar.finished = one.finished()

    def text(self, one: Request) -> str:
        """Return the output without the token that ended it."""
        kept = [token for token in one.output_ids if token not in self.end_ids]
        return self.tokenizer.decode(kept, skip_special_tokens=False)  # type: ignore[no-any-return]


def sampling_info(rows: int, width: int, grammars: list[BaseGrammarObject | None]) -> SamplingBatchInfo:
    """Return SGLang's object of a batch that makes the mask."""
    ones = torch.ones(rows)
    info = SamplingBatchInfo(ones, ones, ones.int(), ones, False, False, False, False, False, width, device="cpu")
    info.grammars = grammars if any(grammars) else None  # type: ignore[assignment]
    return info


def verified(rows: torch.Tensor, children: torch.Tensor, siblings: torch.Tensor, tokens: torch.Tensor) -> list[int]:
    """Return what is sampled along a tree, from its root to the first token that is no draft."""
    node, output = 0, []
    while True:
        token = int(rows[node].argmax())
        output.append(token)
        node = int(children[node])
        while node != -1 and int(tokens[node]) != token:
            node = int(siblings[node])
        if node == -1:
            return output


def prebuilt(one: Request) -> None:
    """Take over a request whose first token another instance has made, or that was retracted."""
    algorithm = SimpleNamespace(build_disagg_draft_input=lambda *about: about)
    batch = SimpleNamespace(reqs=[one], tree_cache=None, device="cpu", spec_algorithm=algorithm)
    one.swa_branching_seqlen = None  # type: ignore[attr-defined]
    PREBUILT(batch, None)


def is_refusal(one: Request) -> bool:
    return isinstance(one.grammar, InvalidGrammarObject)


def own_store(folder: os.PathLike[str]) -> dict[str, str]:
    """Environment variables of a plugin that keeps its grammars in `folder`."""
    return {"TURNSTILE_STORE": f"file://{folder}"}
