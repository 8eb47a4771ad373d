"""The same requests at temperature 0 through two replicas: where their tokens part, and by how much of a logit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

from tests.documents import REPOSITORY
from tests.gpu_workers.test_replica import body

ROUNDING = 1e-3
"""Log-probabilities that differ by less are the same to two ways of adding up float32 numbers."""

NAMES = ("Alice Moore", "Bob Stone", "Carla Diaz", "David Kim", "Eva Novak")
CITIES = ("Paris", "Oslo", "Lima", "Rome")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first token that is another one. `margin`: how much likelier each engine found its own than the other's."""

    request: str
    position: int
    tokens: tuple[int, int]
    margin: float

    @property
    def is_rounding(self) -> bool:
        return self.margin < ROUNDING


def requests(count: int) -> list[dict[str, Any]]:
    """Ordinary schemas and free text, each behind a prompt of its own."""
    lines = (REPOSITORY / "tests" / "data" / "ordinary_schemas.jsonl").read_text().splitlines()
    schemas = [json.loads(line) for line in lines]
    made = []
    for number in range(count):
        schema = None if number % 5 == 4 else schemas[number % len(schemas)]
        name, city = NAMES[number % len(NAMES)], CITIES[number % len(CITIES)]
        content = f"Extract the person: {name} is {20 + number} years old and lives in {city}."
        settings = {"temperature": 0.0, "max_tokens": 120, "logprobs": 2}
        made.append({**body(schema, **settings), "messages": [{"role": "user", "content": content}]})
    return made


async def differences(
    one: Any, other: Any, asked: list[dict[str, Any]], of_other: list[dict[str, Any]] | None = None
) -> list[Difference]:
    """Where the tokens of two replicas part; `of_other`: what the second is asked, where that is something else."""
    pairs = zip(asked, of_other or asked, strict=True)
    found = await asyncio.gather(*(_difference(one, other, *pair) for pair in pairs))
    return [difference for difference in found if difference is not None]


async def _difference(one: Any, other: Any, request: dict[str, Any], of_other: dict[str, Any]) -> Difference | None:
    first, second = await asyncio.gather(_reports(one, request), _reports(other, of_other))
    for position, (mine, theirs) in enumerate(zip(first, second, strict=False)):
        if mine["token_id"] != theirs["token_id"]:
            margin = max(_margin(mine, theirs["token_id"]), _margin(theirs, mine["token_id"]))
            return Difference(str(request["messages"]), position, (mine["token_id"], theirs["token_id"]), margin)
    # An end token behind what was complete anyway: the native engine does without.
    shorter, longer = sorted((first, second), key=len)
    assert len(longer) - len(shorter) <= 1, (first, second)
    return None


def _margin(report: dict[str, Any], token_id: int) -> float:
    others = [choice["logprob"] for choice in report["top"] if choice["token_id"] == token_id]
    return float(report["logprob"] - others[0]) if others else float("inf")


async def _reports(replica: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """A report for each token."""
    found = []
    async for item in replica.generate(request):
        assert "error" not in item, item
        found += item.get("reports", ())
    return found
