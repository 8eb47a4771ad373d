"""Thoughts of a bounded length: where a model thinks for too long, the end of its thoughts is written in its stead.

thoughts, `most` tokens at most  |  <end of thoughts>  |  answer
-- one generation, broken off --                       -- another one, which goes on behind both --
"""

from __future__ import annotations

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
    text, emitted = "", list[int]()
    # The last tokens before the limit wait: where they end inside of a character, they are taken back.
    held: list[Event] = []
    async with aclosing(generate(request)) as events:
        async for event in events:
            if not limit.is_over(text):
                if len(emitted) + _tokens(held) + len(event["token_ids"]) > limit.most:
                    break
                text += event["text"]
                held.append(event)
                near = limit.most - len(emitted) - _tokens(held) < _LONGEST_CHARACTER
                if near and not limit.is_over(text) and event["finish_reason"] is None:
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
    last = {**event, "finish_reason": None}
    # Events may bring several tokens: how they are cut depends on the replica's load, where thoughts end must not.
    kept = [token for one in (*held, event) for token in one["token_ids"]][: limit.most - len(emitted)]
    if (more := await _whole_characters(emitted, kept, decode)) is not None:
        yield {**last, "text": more, "token_ids": kept}
    emitted += kept
    closing = await encode(limit.closes)
    most = request["sampling"]["max_tokens"]
    if most is not None and len(emitted) + len(closing) >= most:
        yield {**last, "text": "", "token_ids": [], "finish_reason": "length"}
        return
    yield {**last, "text": limit.closes, "token_ids": closing}
    async with aclosing(generate({**request, "emitted_token_ids": [*emitted, *closing]})) as events:
        async for event in events:
            yield event


def _tokens(events: list[Event]) -> int:
    return sum(len(event["token_ids"]) for event in events)


async def _whole_characters(
    emitted: list[int], kept: list[int], decode: Callable[[list[int]], Awaitable[str]]
) -> str | None:
    """The text that `kept` adds to `emitted`, whose last tokens are taken out where they end inside of a character."""
    before = (await decode(emitted)).rstrip(_REPLACEMENT) if emitted else ""
    while kept:
        text = await decode([*emitted, *kept])
        if not text.endswith(_REPLACEMENT):
            return text.removeprefix(before)
        kept.pop()
    return None
