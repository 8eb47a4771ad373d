"""Where does the time of a decode step go? CPU time of the engine thread by part, replaying answers of MaskBench.

    python -m benchmarks.step_profile --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). The model is that of `guided_overhead`; one
thread. Parts exclude what they call: `forward pass` is the model up to the last hidden state, `output projection` its
head, `sampling` the tensor work on logits; everything else is host work.
"""

from __future__ import annotations

import argparse
import collections
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.instances import load_instances
from benchmarks.maskbench_data import parse_with_data
from benchmarks.replay import MAX_LENGTH, PROMPT, ReplayEngine, random_llama
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig

DEVICE_PARTS = ("forward pass", "output projection", "sampling")


class Clock:
    """CPU seconds of one thread by part; a part that calls another stands still meanwhile."""

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()
        self._stack: list[str] = []
        self._since = 0.0

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Replaces the method `owner.name` by one whose time counts as `part`."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._stack.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._stack.pop()

        setattr(owner, name, timed)

    def _switch(self) -> None:
        now = time.thread_time()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


class _Parts:
    """A slotted object's methods, so that they can be wrapped."""

    def __init__(self, wrapped: Any) -> None:
        self.__dict__["_wrapped"] = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def watch(clock: Clock, replay: ReplayEngine) -> None:
    engine = replay.engine.step_loop
    clock.wrap(engine, "_step", "the step's own loop")
    clock.wrap(engine, "_take_messages", "messages")
    clock.wrap(engine.outbox, "deliver", "text and streams")
    clock.wrap(engine, "_overlap", "draws")
    clock.wrap(engine, "_follow_grammars", "grammar states and masks")
    clock.wrap(engine, "_propose", "drafts")
    clock.wrap(engine, "_commit", "rows of hidden states")
    clock.wrap(engine, "_sample", "tokens")
    clock.wrap(engine.scheduler, "admit", "slots and plans")
    clock.wrap(engine.scheduler, "plan", "slots and plans")
    clock.wrap(engine._runner, "forward", "forward pass")
    sampler: Any = _Parts(engine.sampler)
    engine.sampler.head = head = _Parts(engine.sampler.head)
    clock.wrap(sampler, "prepare", "masks, penalties, random numbers")
    clock.wrap(sampler, "finish", "sampling")
    clock.wrap(head, "logits", "output projection")
    clock.wrap(head, "columns", "output projection")
    engine.sampler = sampler


def measure(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    vocabulary, spell = named_vocabulary(arguments.vocabulary), named_encoder(arguments.vocabulary)
    found = load_instances(arguments.data, vocabulary, spell, per_family=arguments.instances)
    chosen = [one for one in found if 16 <= len(one.token_ids) <= MAX_LENGTH - len(PROMPT) - 16]
    instances = [chosen[i % len(chosen)] for i in range(arguments.rows)]
    config = EngineConfig(slots=arguments.rows, max_length=MAX_LENGTH, step_tokens=arguments.rows * 16, threads=1)
    model = random_llama(vocabulary.size)
    for guided in (False, True):
        replay = ReplayEngine(model, vocabulary, spell, config)
        replay.run(instances, guided=guided)  # warms up
        clock = Clock()
        watch(clock, replay)
        before = replay.engine.statistics.steps
        replay.run(instances, guided=guided)
        steps = replay.engine.statistics.steps - before
        replay.close()
        total = clock.seconds.total()
        kind = "guided" if guided else "unguided"
        print(f"\n{kind}, {arguments.rows} rows, vocabulary of {vocabulary.size}: {1000 * total / steps:.1f} ms a step")
        for part, seconds in clock.seconds.most_common():
            print(f"  {part:33} {1000 * seconds / steps:8.2f} ms {100 * seconds / total:6.1f} %")
        host = sum(seconds for part, seconds in clock.seconds.items() if part not in DEVICE_PARTS)
        print(f"  {'host work, all parts':33} {1000 * host / steps:8.2f} ms {100 * host / total:6.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", default="sentencepiece", help="tekken, sentencepiece, or a model folder or id")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--instances", type=int, default=40, help="schemas per family to choose from")
    arguments = parse_with_data(parser)
    measure(arguments)


if __name__ == "__main__":
    main()
