"""Thoughts of a bounded length: where a model thinks for too long, the end of its thoughts is written in its stead.

thoughts, `most` tokens at most  |  <end of thoughts>  |  answer
-- one generation, broken off --                       -- another one, which goes on behind both --
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from deployments.chat.thinking import ThoughtsLimit

Event = dict[str, Any]

_LONGEST_CHARACTER = 4
"""Bytes of a character, so the most tokens that it is cut into."""
_REPLACEMENT = "\ufffd"


async def limited(
    limit: ThoughtsLimit,
    request: dict[str, Any],
    generate: Callable[[dict[str, Any]], AsyncGenerator[Event, None]],
    encode: Callable[[str], Awaitable[list[int]]],
    decode: Callable[[list[int]], Awaitable[str]],
) -> AsyncGenerator[Event, None]:
    """The events of `generate(request)` with thoughts of at most `limit.most` tokens; the end of thoughts is none.

    `generate` goes on behind `emitted_token_ids`; `encode` and `decode` are the model's.
    """
    started = time.monotonic()
    text, emitted = "", list[int]()
    # The last tokens before the limit wait: where they end inside of a character, they are taken back.
    held: list[Event] = []
    async with aclosing(generate(request)) as events:
        async for event in events:
            if limit.end not in text:
                if len(emitted) + _tokens(held) + len(event["token_ids"]) > limit.most:
                    break
                text += event["text"]
                held.append(event)
                near = limit.most - len(emitted) - _tokens(held) < _LONGEST_CHARACTER
                if near and limit.end not in text and event["finish_reason"] is None:
                    continue
                for one in held:
                    emitted += one["token_ids"]
                    yield one
                held.clear()
            else:
                emitted += event["token_ids"]
                yield event
        else:
            return
    while held and await _is_inside_of_character(held, emitted, text, decode):
        text = text[: len(text) - len(held.pop()["text"])]
    for one in held:
        emitted += one["token_ids"]
        yield one
    closing = await encode(limit.closes)
    most = request["sampling"]["max_tokens"]
    last = {**event, "text": "", "token_ids": [], "finish_reason": None}
    if most is not None and len(emitted) + len(closing) >= most:
        yield {**last, "finish_reason": "length"}
        return
    yield {**last, "text": limit.closes, "token_ids": closing}
    left = request["timeout_s"]
    left = None if left is None else max(left - (time.monotonic() - started), 1e-3)
    going_on = {**request, "timeout_s": left, "emitted_token_ids": [*emitted, *closing]}
    async with aclosing(generate(going_on)) as events:
        async for event in events:
            yield event


def _tokens(events: list[Event]) -> int:
    return sum(len(event["token_ids"]) for event in events)


async def _is_inside_of_character(
    held: list[Event], emitted: list[int], text: str, decode: Callable[[list[int]], Awaitable[str]]
) -> bool:
    read = await decode([*emitted, *(token for event in held for token in event["token_ids"])])
    return read.endswith(_REPLACEMENT) and not text.endswith(_REPLACEMENT)
