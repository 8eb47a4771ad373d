"""Limit on the reasoning tokens of a response. The router ends the reasoning at the limit.

A limited response consists of two generations. The router stops the first generation at the limit. It inserts the end
marker of the reasoning (such as `</think>`), and starts a second generation, which continues after the marker:

    reasoning, `most` tokens at most  |  end of reasoning  |  answer
    '---------- first generation, stopped -----------'       '-- second generation --'
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from deployments.chat.thinking import ThoughtsLimit

Event = dict[str, Any]

# Maximum number of bytes in a character, and so of tokens that share a character.
_LONGEST_CHARACTER = 4
_REPLACEMENT = "\ufffd"


async def limited(
    limit: ThoughtsLimit,
    request: dict[str, Any],
    generate: Callable[[dict[str, Any]], AsyncGenerator[Event, None]],
    encode: Callable[[str], Awaitable[list[int]]],
    decode: Callable[[list[int]], Awaitable[str]],
) -> AsyncGenerator[Event, None]:
    """Run a generation whose reasoning (text before the answer) has at most `limit.most` tokens.

    At the limit, the running generation is stopped, and the text `limit.closes` (end marker of the reasoning) is
    inserted. A second generation then continues after the inserted text. The tokens of `limit.closes` count toward
    `max_tokens`, but not toward `limit.most`.

    Args:
        limit: Maximum number of reasoning tokens, and the text that ends the reasoning.
        request: Generation request as plain data (`gpu_workers.request.GenerationRequest`); not changed.
        generate: Function that starts a generation for a request. The generation continues after the tokens
            `emitted_token_ids` of the request.
        encode: Function that converts text to token IDs with the model's tokenizer.
        decode: Function that converts token IDs to text with the model's tokenizer.

    Yields:
        Events of one output (`text`, `token_ids`, `finish_reason`, ...), as `generate` yields them. Only the last event
        has a finish reason. It is `length` if `max_tokens` leaves no tokens after the inserted text.
    """
    emitted: list[int] = []
    cut: list[Event] = []
    async with aclosing(_up_to_limit(limit, generate(request), cut)) as events:
        async for event in events:
            emitted += event["token_ids"]
            yield event
    if not cut:
        return
    last = {**cut[-1], "finish_reason": None}
    # The number of tokens per event depends on the load of the replica. The end of the reasoning must not depend on it.
    kept = [token for one in cut for token in one["token_ids"]][: limit.most - len(emitted)]
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


async def _up_to_limit(
    limit: ThoughtsLimit, generation: AsyncGenerator[Event, None], cut: list[Event]
) -> AsyncGenerator[Event, None]:
    """Yield the events of a generation. At the limit, stop it, and append the events that remain to `cut`.

    The last events before the limit are held back, and may also remain: tokens that end inside a character are dropped.
    """
    text, tokens, held = "", 0, list[Event]()
    async with aclosing(generation):
        async for event in generation:
            if limit.is_over(text):
                yield event
                continue
            held.append(event)
            tokens += len(event["token_ids"])
            if tokens > limit.most:
                cut += held
                return
            text += event["text"]
            near = limit.most - tokens < _LONGEST_CHARACTER
            if near and not limit.is_over(text) and event["finish_reason"] is None:
                continue
            for one in held:
                yield one
            held.clear()


async def _whole_characters(
    emitted: list[int], kept: list[int], decode: Callable[[list[int]], Awaitable[str]]
) -> str | None:
    """Return the text that `kept` adds to `emitted`. Remove tokens from the end of `kept` that cut a character."""
    before = (await decode(emitted)).rstrip(_REPLACEMENT) if emitted else ""
    while kept:
        text = await decode([*emitted, *kept])
        if not text.endswith(_REPLACEMENT):
            return text.removeprefix(before)
        kept.pop()
    return None
