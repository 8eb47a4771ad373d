"""Data classes of the router: the constraint of a request (`Grammar`) and its running generation (`Generation`).

The code that calls other deployments creates these objects. The code that formats HTTP responses reads them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from deployments.http.errors import Places
from deployments.http.unenforced import InTheseWords, in_words
from deployments.status.seen_grammars import Seen
from grammar_workers.tracing import Span, Timing

# Event of a replica: `text`, `token_ids`, `finish_reason`, `prompt_tokens`, and optionally `reports`; or `error`.
Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Constraint of a request, in the form in which the router (HTTP ingress) sends it to compilers and model replicas.

    Attributes:
        key: Grammar key: hash (64 hexadecimal digits) of specification, options, vocabulary and compiler version.
        specification: Normalized constraint as plain data. If the request sets options of the grammar compiler, they
            are included (see `grammar_workers.service.job`). None: the client has sent only the key.
        param: Field of the request body that contains the constraint, such as `response_format`. Errors name it.
        places: Translation of JSON Pointers from the specification to the request body, for errors. An entry is (prefix
            of a pointer, replacement) for pointers into the field `param`. It is (prefix, replacement, field) for
            pointers into another field of the body.
        only_own: True: the key is accepted only if the tenant (client) of the request has sent the constraint of this
            key before. False: a key of any tenant is accepted.
        seen: Type and title of the specification, for the status page.
    """

    key: str
    specification: dict[str, Any] | None
    param: str
    places: Places = ()
    only_own: bool = False
    seen: Seen = dataclasses.field(default_factory=Seen)


@dataclasses.dataclass
class Generation:
    """Running generation of one HTTP response, with one or several choices (alternative outputs).

    Iterate with `async for` to read the events of all choices. Only one iteration is possible. Always call `aclose` at
    the end, because it stops the work of the model replicas. An event is a dictionary with `text`, `token_ids`,
    `prompt_tokens` and `finish_reason` (None before the last event of a choice).

    Attributes:
        first: First event of each choice, in the order of the choices.
        rest: Generators of the later events, one per choice.
        grammar: Response of the compiler about the constraint, as from `Tiers.compile`. Its field `unenforced` lists
            the schema keywords that are not enforced. None: the request has no constraint.
        span: OpenTelemetry span of the request. `aclose` ends the span.
        timings: Phases of the request as (name, begin, end) in seconds of `time.monotonic`. Each phase becomes a child
            of `span`.
    """

    first: list[Event]
    rest: list[AsyncGenerator[Event, None]]
    grammar: dict[str, Any] | None
    span: Span = dataclasses.field(default_factory=Span)
    timings: list[Timing] = dataclasses.field(default_factory=list)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Yield the events of all choices as they arrive. Each event also has `index`: its choice, from 0."""
        for index, event in enumerate(self.first):
            yield {**event, "index": index}
        if len(self.rest) == 1:
            async for event in self.rest[0]:
                yield {**event, "index": 0}
            return
        coming = {asyncio.ensure_future(anext(rest)): index for index, rest in enumerate(self.rest)}
        try:
            while coming:
                done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                for call in done:
                    index = coming.pop(call)
                    try:
                        event = call.result()
                    except StopAsyncIteration:
                        continue
                    yield {**event, "index": index}
                    coming[asyncio.ensure_future(anext(self.rest[index]))] = index
        finally:
            await cancelled(coming)

    def tell_places(self, words: InTheseWords) -> None:
        """Translate the locations of schema keywords that are not enforced to a request body of another format.

        For example, the router translates a body of `/v1/responses` to a chat completion. The locations are in
        `grammar`, which is replaced by a new dictionary.

        Args:
            words: Function that gets a field and a JSON Pointer in the chat completion. It returns the field and the
                JSON Pointer in the body that the client has sent.
        """
        if self.grammar is not None:
            self.grammar = {**self.grammar, "unenforced": in_words(self.grammar["unenforced"], words)}

    async def aclose(self) -> None:
        """Stop the generations of all choices in the model replicas, and end the trace span.

        The method may be called again.
        """
        for rest in self.rest:
            await rest.aclose()
        self.span.end(self.timings)


async def cancelled(calls: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel calls and wait until they have ended. Their results and exceptions are ignored.

    Args:
        calls: Tasks or futures. A call that has ended already is not affected.
    """
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
