"""Is guided decoding faster than unguided? Tokens per CPU second of one process, guided over unguided.

    python -m benchmarks.guided_overhead --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). A Llama of 4 layers and hidden size 256 with
random weights runs on one thread; both ways replay the same answers, so token counts are equal. Automata are warm, as
for a schema in use. Rows are grouped by their share of free tokens: those at whose place the grammar allows more than
`sparse_limit` tokens. `no drafts`: sparse projection and tokens without a choice; `drafts`: the engine's defaults.
Beside it transformers' `generate` with xgrammar's logits processor, for the same answers; an answer that xgrammar
rejects is left out everywhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
import xgrammar
from transformers import LlamaForCausalLM, LogitsProcessor, LogitsProcessorList
from xgrammar.contrib.hf import LogitsProcessor as XgrammarProcessor

from benchmarks.instances import Instance, load_instances
from benchmarks.maskbench_data import parse_with_data
from benchmarks.replay import MAX_LENGTH, PROMPT, ReplayEngine, random_llama
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig
from grammar_workers import Vocabulary

GROUPS = {"<= 30 %": (0.0, 0.3), "30-60 %": (0.3, 0.6), "> 60 %": (0.6, 1.01)}
PEER_ROWS = (1, 8)


def free_share(instance: Instance, sparse_limit: int) -> float:
    """Share of the answer's tokens at whose place more than `sparse_limit` tokens are allowed."""
    state, free = instance.fsm.initial_state, 0
    for token_id in instance.token_ids:
        free += int(np.bitwise_count(instance.fsm.allowed_mask(state)).sum()) > sparse_limit
        state = instance.fsm.next_state(state, token_id)
    return free / len(instance.token_ids)


class _Replay(LogitsProcessor):
    """Leaves only the answer's next token, after everybody else's work is done."""

    def __init__(self, answers: list[list[int]], end: int) -> None:
        self._answers = answers
        self._end = end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - len(PROMPT)
        wanted = [answer[position] if position < len(answer) else self._end for answer in self._answers]
        scores.fill_(-torch.inf)
        scores[torch.arange(len(wanted)), torch.tensor(wanted)] = 0
        return scores


class Peer:
    """transformers' `generate` under xgrammar."""

    def __init__(self, model: LlamaForCausalLM, vocabulary: Vocabulary) -> None:
        self._model = model
        self._end = vocabulary.eos_token_ids[0]
        info = xgrammar.TokenizerInfo(
            [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)],
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info)

    def accepts(self, instance: Instance) -> bool:
        """Whether its grammar for the schema allows the answer."""
        matcher = xgrammar.GrammarMatcher(self._compile(instance))
        return all(matcher.accept_token(token_id) for token_id in instance.token_ids)

    def run(self, instances: list[Instance]) -> tuple[int, float]:
        """Tokens and CPU seconds. Compiling is not counted."""
        processors = LogitsProcessorList(
            [
                XgrammarProcessor([self._compile(instance) for instance in instances]),
                _Replay([instance.token_ids for instance in instances], self._end),
            ]
        )
        prompts = torch.tensor([PROMPT] * len(instances))
        self._model.set_attn_implementation("sdpa")
        started = time.process_time()
        self._model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            logits_processor=processors,
            do_sample=True,
            top_k=0,
            max_new_tokens=max(len(instance.token_ids) for instance in instances),
            eos_token_id=self._end,
            pad_token_id=self._end,
        )
        return sum(len(instance.token_ids) for instance in instances), time.process_time() - started

    def _compile(self, instance: Instance) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_json_schema(json.dumps(instance.schema), any_whitespace=False)


def rate(run: Any) -> float:
    tokens, seconds = run
    return tokens / seconds


def measure(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    header = f"{'vocabulary':14} {'free':8} {'rows':>4} {'unguided/s':>10} {'no drafts':>9} {'drafts':>7}"
    print(f"{header} {'generate+xgrammar/s':>20}")
    for name in arguments.vocabularies:
        vocabulary, spell = named_vocabulary(name), named_encoder(name)
        model = random_llama(vocabulary.size)
        other = Peer(model, vocabulary)
        candidates = [
            instance
            for instance in load_instances(arguments.data, vocabulary, spell, per_family=arguments.instances)
            if 16 <= len(instance.token_ids) <= MAX_LENGTH - len(PROMPT) - 16 and other.accepts(instance)
        ]
        shares = {id(instance): free_share(instance, EngineConfig().sparse_limit) for instance in candidates}
        for group in arguments.groups:
            low, high = GROUPS[group]
            chosen = [instance for instance in candidates if low <= shares[id(instance)] < high][: max(arguments.rows)]
            if not chosen:
                continue
            for rows in arguments.rows:
                instances = [chosen[i % len(chosen)] for i in range(rows)]
                print(f"{name} {group} {rows} rows ...", file=sys.stderr, flush=True)
                line(arguments, name, group, model, vocabulary, spell, other, instances)


def line(
    arguments: argparse.Namespace,
    name: str,
    group: str,
    model: LlamaForCausalLM,
    vocabulary: Vocabulary,
    spell: Any,
    other: Peer,
    instances: list[Instance],
) -> None:
    common = {"slots": len(instances), "max_length": MAX_LENGTH, "step_tokens": len(instances) * 16, "threads": 1}
    plain = EngineConfig(**common, ngram=0, max_drafts=0)
    rates: dict[str, list[float]] = {"unguided": [], "no drafts": [], "drafts": []}
    engines = {"no drafts": ReplayEngine(model, vocabulary, spell, plain)}
    engines["drafts"] = ReplayEngine(model, vocabulary, spell, EngineConfig(**common))
    for repeat in range(arguments.repeats + 1):  # the first warms up
        for way, engine in (("unguided", engines["no drafts"]), *engines.items()):
            made = rate(engine.run(instances, guided=way != "unguided"))
            if repeat:
                rates[way].append(made)
    for engine in engines.values():
        engine.close()
    median = {way: statistics.median(values) for way, values in rates.items()}
    beside = "-"
    if len(instances) in PEER_ROWS:
        generated = statistics.median([rate(other.run(instances)) for _ in range(arguments.repeats + 1)][1:])
        beside = f"{generated:.0f} ({median['no drafts'] / generated:.2f}x)"
    unguided = median.pop("unguided")
    ratios = " ".join(f"{median[way] / unguided:{width}.2f}" for way, width in (("no drafts", 9), ("drafts", 7)))
    print(f"{name:14} {group:8} {len(instances):4} {unguided:10.0f} {ratios} {beside:>20}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", nargs="+", default=["sentencepiece", "tekken"], help="32k and 131k")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--instances", type=int, default=60, help="schemas per family to choose from")
    parser.add_argument(
        "--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS), help="by share of free tokens"
    )
    parser.add_argument("--repeats", type=int, default=3, help="the median of these counts")
    arguments = parse_with_data(parser)
    measure(arguments)


if __name__ == "__main__":
    main()
