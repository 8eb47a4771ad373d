"""One of several scheduler processes that run the same batches: `python -m tests.sglang.rank RANK TP PP PORT MODEL`.

Prints what became of each request, as JSON. `GrammarManager` syncs over gloo as it does beside a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import torch.distributed as dist
from transformers import AutoTokenizer

from tests.sglang.scheduler import Request, Scheduler, context, request

REQUESTS = (
    ("json_schema", '{"type": "object", "properties": {"a": {"enum": ["x", "yz"]}}, "required": ["a"]}'),
    ("regex", "("),
    ("regex", "[ab]{3}"),
    ("regex", "[ab]{3}"),
    ("structural_tag", "{}"),
)


def main(rank: int, tp: int, pp: int, port: str, model: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=tp * pp)
    stages = [dist.new_group(list(range(stage * tp, stage * tp + tp))) for stage in range(pp)]
    stage, tp_rank = divmod(rank, tp)
    coordinator = SimpleNamespace(world_size=tp, first_rank=stage * tp, is_first_rank=tp_rank == 0)
    with context(model, tp_rank=tp_rank, tp_size=tp, pp_rank=stage, pp_size=pp) as arguments:
        tokenizer = AutoTokenizer.from_pretrained(model)
        scheduler = Scheduler(arguments, tokenizer, len(tokenizer), (coordinator, stages[stage]))
        scheduler.pp_group = scheduler.manager.pp_group = Pipeline(stage, tp_rank, tp)
        outcomes = []
        for _ in range(2):  # what SGLang has kept, and what it asks again
            requests = [request(*constraint) for constraint in REQUESTS]
            scheduler.admit(requests)
            scheduler.run(requests, drafts=2)
            outcomes += [outcome(scheduler, one) for one in requests]
    started = bool(getattr(scheduler.manager.grammar_backend._decider, "_admission", None))  # type: ignore[union-attr]
    print(json.dumps({"compiles": started, "outcomes": outcomes}), flush=True)
    dist.barrier()
    os._exit(0)


def outcome(scheduler: Scheduler, one: Request) -> str:
    return one.to_finish or scheduler.text(one)


class Pipeline:
    """SGLang's group of the stages that one rank of tensor parallelism has, for plain objects."""

    def __init__(self, stage: int, tp_rank: int, tp: int) -> None:
        self.tp_rank, self.tp = tp_rank, tp

    def send_object(self, data: object, dst: int, async_send: bool, tag: object) -> list[SimpleNamespace]:
        dist.send_object_list([data], dst=dst * self.tp + self.tp_rank)
        return [SimpleNamespace(work=SimpleNamespace(wait=lambda: None))]

    def recv_object(self, src: int, tag: object) -> object:
        data: list[object] = [None]
        dist.recv_object_list(data, src=src * self.tp + self.tp_rank)
        return data[0]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:6])
