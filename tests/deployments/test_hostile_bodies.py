"""Bodies made to hurt: every answer is small, says where and what is wrong, and nothing waits for it."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from deployments.http.strict_json import MOST, LargeBodies
from deployments.openai.protocol import ChatCompletionBody, CompletionBody
from deployments.openai.responses.body import ResponsesBody
from deployments.routing.grammars import GrammarBody
from grammar_workers.strict_json import JsonTextError
from tests.deployments.applications import MAX_BODY_BYTES
from tests.hostile.answers import fault
from tests.hostile.many_errors import CHAT, GRAMMARS, MANY_ERRORS, MANY_PARTS, RESPONSES, TEXT
from tests.hostile.mutations import hostile_bodies

pytestmark = pytest.mark.anyio

MODELS: dict[str, type[BaseModel]] = {
    CHAT: ChatCompletionBody,
    TEXT: CompletionBody,
    RESPONSES: ResponsesBody,
    GRAMMARS: GrammarBody,
}
JSON = {"content-type": "application/json"}
FEW = 100
MUTATIONS = 400


@pytest.mark.parametrize("name", MANY_ERRORS)
def test_validation_stops_at_the_first_few_errors(name: str) -> None:
    path, make = MANY_ERRORS[name]
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(MODELS[path]).validate_python(json.loads(make(200_000)))
    assert caught.value.error_count() <= FEW


@pytest.mark.parametrize("name", [*MANY_ERRORS, *MANY_PARTS])
async def test_errors_stay_small(http: httpx.AsyncClient, name: str) -> None:
    path, make = (MANY_ERRORS | MANY_PARTS)[name]
    response = await http.post(path, content=make(MAX_BODY_BYTES), headers=JSON)
    assert fault(response, _lenient(make(MAX_BODY_BYTES))) is None, response.text[:2000]
    assert name in MANY_PARTS or response.status_code == 400


def _lenient(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


SIGNS = json.dumps('":[{\\' * 100_000)


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("keys", lambda many: "{" + "".join(f'"{number}":0,' for number in range(many - 1)) + f'"x":{SIGNS}}}'),
        ("objects and lists", lambda many: "[" + "[]," * (many - 1) + SIGNS + "]"),
        ("objects and lists", lambda many: "[" + "{}," * (many - 1) + SIGNS + "]"),
    ],
)
async def test_large_bodies_have_so_many_parts(what: str, body: Callable[[int], str]) -> None:
    """What stands in texts is none."""
    assert len(await LargeBodies().parse(body(MOST[what]).encode())) == MOST[what]
    with pytest.raises(JsonTextError, match=f"more than {MOST[what]} {what}"):
        await LargeBodies().parse(body(MOST[what] + 1).encode())


async def test_whatever_is_sent_the_answer_is_right(http: httpx.AsyncClient) -> None:
    """Another seed each day, and always the same in CI."""
    seed = 1 if os.environ.get("CI") else datetime.date.today().toordinal()
    print(f"seed {seed}")
    statuses = set()
    for path, text, value in itertools.islice(hostile_bodies(random.Random(seed)), MUTATIONS):
        response = await http.post(path, content=text, headers=JSON)
        assert (problem := fault(response, value)) is None, (
            f"{problem}: {path} {text[:3000]!r} -> {response.text[:3000]}"
        )
        statuses.add(response.status_code)
    assert {200, 400} <= statuses
