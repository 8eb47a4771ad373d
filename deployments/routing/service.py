"""HTTP handlers of the router. They convert request bodies to generation requests, and outputs to responses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Body, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from deployments.anthropic.answer import MessagesAnswer, TokenCount
from deployments.anthropic.body import CountTokensBody, MessagesBody
from deployments.arguments import AppArguments
from deployments.chat.output_parser import OutputParser
from deployments.chat.thinking import PROMPTS, Thinking
from deployments.chat.tools import ToolDialect
from deployments.event_stream import EventStream
from deployments.generation import Generation, Grammar
from deployments.http.deadline import Deadline
from deployments.http.errors import ApiError, Places
from deployments.http.examples import EXAMPLES
from deployments.http.limits import LimitedCaller, RateLimits
from deployments.http.request_id import ANTHROPIC_HEADER, sent_request_id
from deployments.http.tenants import Caller, Tenant
from deployments.http.unenforced import headers_of
from deployments.openai.chat_format import ChatFormat
from deployments.openai.completions import Answer, Begun
from deployments.openai.constraints import banned_specification
from deployments.openai.protocol import ChatCompletionBody, CompletionBody, GenerationBody
from deployments.openai.responses.answer import ResponsesAnswer
from deployments.openai.responses.body import ResponsesBody
from deployments.routing.grammar_keys import GrammarKeys
from deployments.routing.grammars import Grammars
from deployments.routing.tiers import Tiers
from deployments.status.reports import RecentReports
from deployments.tokens.body import DetokenizeBody, TokenizeBody, conversation_request
from deployments.version import version
from grammar_workers.errors import shortened
from grammar_workers.service.memory_guard import GUARD, ProcessFullError
from grammar_workers.specification import GrammarSpecification
from grammar_workers.tracing import Span, tracing

HEALTH_TIMEOUT_S = 5.0
MAX_SHOWN_NAME = 200


class ModelCard(BaseModel):
    """Model or LoRA adapter that a request can name in the field `model`.

    `created` is the Unix time at which the router started. `max_model_len` is the maximum number of tokens of prompt
    and output together.
    """

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """Response of `GET /v1/models`: the model and its LoRA adapters."""

    object: str
    data: list[ModelCard]


class Health(BaseModel):
    """Response of `GET /health` with HTTP status 200. `status` is always `ok`."""

    status: str


class Service:
    """Request handlers of the HTTP paths of one router replica (process of the HTTP ingress).

    Args:
        tiers: Client of the grammar compilers and model replicas.
        args: Arguments of the whole application.

    Attributes:
        model: Name of the served model in requests.
        system_fingerprint: Text in responses that identifies the version of the server and the model.
        grammars: Request handlers of `/v1/grammars`.
        reports: Cached reports of all compilers and model replicas, for the status page.
        seen_grammars: Constraints and rejections of this router, for the status page.
    """

    def __init__(self, tiers: Tiers, args: AppArguments) -> None:
        self._tiers = tiers
        self._args = args
        self.model = args.model_name
        self.system_fingerprint = f"fp_{hashlib.sha256(f'{version()} {self.model}'.encode()).hexdigest()[:10]}"
        self._started = int(time.time())
        self._chat_format: ChatFormat | None = None
        self._max_model_len: int | None = None
        self._keys = GrammarKeys(tiers, allow_unenforced=args.router.allow_unenforced)
        self.grammars = Grammars(tiers, self._keys, timeout_s=args.router.timeout_s)
        self.reports = RecentReports(tiers.reports)
        self.seen_grammars = tiers.seen_grammars

    async def chat_completions(
        self,
        body: Annotated[ChatCompletionBody, Body(openapi_examples=EXAMPLES["/v1/chat/completions"])],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Reply to a conversation, under a constraint if the body has one. With `stream`, send server-sent events."""
        return await self._complete(body, request, tenant)

    async def completions(
        self,
        body: Annotated[CompletionBody, Body(openapi_examples=EXAMPLES["/v1/completions"])],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Continue each prompt, under a constraint if the body has one. With `stream`, send server-sent events."""
        return await self._complete(body, request, tenant)

    async def _complete(self, body: GenerationBody, request: Request, tenant: Tenant) -> Response:
        rate_limits: RateLimits = request.app.state.rate_limits
        rate_limits.charge(tenant, body.sequences - 1)  # each particle counts as a request; the first has been counted
        begun = await self.begin(body, request, tenant)
        if isinstance(body, CompletionBody):
            await self._begin_others(body, begun.generation, request, tenant)
        return await _sent(Answer(body, begun, self.system_fingerprint), body.stream, begun.generation)

    async def _begin_others(
        self, body: CompletionBody, generation: Generation, request: Request, tenant: Tenant
    ) -> None:
        try:
            for prompt in body.prompts[1:]:
                other = await self.begin(body.model_copy(update={"prompt": prompt}), request, tenant)
                generation.first += other.generation.first
                generation.rest += other.generation.rest
                other.generation.span.end(other.generation.timings)
        except BaseException:
            await generation.aclose()
            raise

    async def responses(
        self,
        body: Annotated[ResponsesBody, Body(openapi_examples=EXAMPLES["/v1/responses"])],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Generate a response in the format of OpenAI's Responses API, under a constraint if the body has one."""
        while True:
            try:
                begun = await self.begin(body.chat, request, tenant)
                break
            except ApiError as error:
                too_long = error.detail.code == "context_length_exceeded"
                if not (too_long and body.truncation == "auto" and body.drop_oldest()):
                    raise error.move(body.in_these_words) from error
        begun.generation.tell_places(body.in_these_words)
        return await _sent(ResponsesAnswer(body, begun), body.stream, begun.generation)

    async def messages(
        self,
        body: Annotated[MessagesBody, Body(openapi_examples=EXAMPLES["/v1/messages"])],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Generate a response in the format of Anthropic's Messages API, under a constraint if the body has one."""
        try:
            begun = await self.begin(body.chat, request, tenant)
        except ApiError as error:
            raise error.move(body.in_these_words) from error
        begun.generation.tell_places(body.in_these_words)
        response = await _sent(MessagesAnswer(begun), body.stream, begun.generation)
        response.headers[ANTHROPIC_HEADER] = begun.request_id
        return response

    async def count_tokens(
        self,
        body: Annotated[CountTokensBody, Body(openapi_examples=EXAMPLES["/v1/messages/count_tokens"])],
        tenant: LimitedCaller,
    ) -> Response:
        """Count the prompt tokens of a conversation in the format of Anthropic's Messages API. Nothing is generated."""
        try:
            self._asked_model(body.model)
            counted = await self._tokens(conversation_request(await self._chat_prompt(body.chat)), tenant)
        except ApiError as error:
            raise error.move(body.in_these_words) from error
        return JSONResponse(TokenCount(input_tokens=counted["count"]).model_dump())

    async def begin(self, body: GenerationBody, request: Request, tenant: Tenant) -> Begun:
        """Check that the served model supports a request, and start its generation. An OpenTelemetry span records both.

        Args:
            body: The validated body: a chat completion or a text completion.
            request: The HTTP request. Its ID, its deadline and its header `traceparent` (parent of the span) are used.
            tenant: Client that has sent the request. Its limits apply, and it may use its grammars (constraints).

        Returns:
            The started generation, with the first event of each choice (output). The caller must close the generation.

        Raises:
            ApiError: The request is rejected (4xx), the server is full (429), or a deployment has failed (5xx).
        """
        span = tracing("router").begin("request", request.headers.get("traceparent"))
        try:
            _check_memory()
            return await self._begin(body, request, tenant, span)
        except ApiError as error:
            span.end(error=error.detail.message, status=error.status)
            raise
        except BaseException as error:
            span.end(error=type(error).__name__)
            raise

    async def _begin(self, body: GenerationBody, request: Request, tenant: Tenant, span: Span) -> Begun:
        deadline: Deadline = request.state.deadline
        if body.timeout_s is not None:
            deadline.set(body.timeout_s, "timeout_s")
        name = self._asked_model(body.model)
        request_id = sent_request_id(request) or uuid.uuid4().hex
        # Seed of a request without one. A request that is repeated with the same id gets the same tokens.
        drawn_seed = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big") >> 1
        self._check_size(body.sent_characters(), "messages" if isinstance(body, ChatCompletionBody) else "prompt")
        # Clients choose their ids, which may not be unique. So the replicas get an id that is made here.
        generation_request = body.generation_request(uuid.uuid4().hex, drawn_seed=drawn_seed)
        generation_request["traceparent"] = span.traceparent
        if name != self.model:
            generation_request["adapter"] = name
        chat_format = await self._served_chat_format() if isinstance(body, ChatCompletionBody) else None
        grammar = await self._grammar(body, chat_format, tenant)
        if grammar is not None and grammar.param == "banned_words":
            del generation_request["sampling"]["banned_words"]
        readers: list[OutputParser] = []
        thoughts = None
        if isinstance(body, ChatCompletionBody) and chat_format is not None:
            generation_request |= chat_format.prompt_fields(body)
            readers = [chat_format.reader(body, drawn_seed, index) for index in range(body.choices)]
            thoughts = chat_format.thoughts_limit(body)
        self._check_prompt(generation_request)
        generation = await self._tiers.start_generation(
            generation_request,
            grammar,
            tenant.name,
            choices=body.choices,
            thoughts=thoughts,
            new_grammars=tenant.limits.new_grammars,
            deadline=deadline,
        )
        generation.span = span
        return Begun(request_id, name, generation, readers)

    async def tokenize(
        self, body: Annotated[TokenizeBody, Body(openapi_examples=EXAMPLES["/tokenize"])], tenant: LimitedCaller
    ) -> Response:
        """Tokenize a text, or the prompt that the chat template makes from a conversation."""
        self._asked_model(body.model)
        prompt = {} if body.chat is None else await self._chat_prompt(body.chat)
        return JSONResponse(await self._tokens(body.request(prompt), tenant))

    async def _chat_prompt(self, chat: ChatCompletionBody) -> dict[str, Any]:
        self._check_size(chat.sent_characters(), "messages")
        return chat.prompt_fields() | (await self._served_chat_format()).prompt_fields(chat)

    async def _tokens(self, request: dict[str, Any], tenant: Tenant) -> dict[str, Any]:
        _check_memory()
        self._check_prompt(request)
        return await self._tiers.tokenize({**request, "tenant": tenant.name})

    async def detokenize(
        self, body: Annotated[DetokenizeBody, Body(openapi_examples=EXAMPLES["/detokenize"])], tenant: LimitedCaller
    ) -> Response:
        """Convert token IDs to text with the model's tokenizer."""
        self._asked_model(body.model)
        return JSONResponse(await self._tiers.detokenize(body.tokens, tenant.name))

    async def models(self, tenant: Caller) -> dict[str, Any]:
        """List the served model and its LoRA adapters, in OpenAI's format."""
        cards = [await self._card(name) for name in self._args.model_names]
        return ModelList(object="list", data=cards).model_dump()

    async def model_card(
        self, name: Annotated[str, Path(description="A name from `/v1/models`.")], tenant: Caller
    ) -> dict[str, Any]:
        """Return the description of the served model or of a LoRA adapter. An unknown name gets HTTP 404."""
        self._asked_model(name)
        return (await self._card(name)).model_dump()

    async def _card(self, name: str) -> ModelCard:
        if self._max_model_len is None:  # it is the same in all replicas
            self._max_model_len = int((await self._tiers.replica_info())["max_model_len"])
        return ModelCard(
            id=name,
            object="model",
            created=self._started,
            owned_by="turnstile",
            max_model_len=self._max_model_len,
        )

    def _asked_model(self, name: str | None) -> str:
        """Return the model that a request names; None: the default. Raise `ApiError` 404 for an unknown model."""
        if name is None:
            return self.model
        if name not in self._args.model_names:
            message = f"the model `{shortened(name, MAX_SHOWN_NAME)}` does not exist; `{self.model}` does"
            raise ApiError(404, message, param="model", code="model_not_found")
        return name

    async def health(self) -> dict[str, str]:
        """Return HTTP 200 if a compiler and a model replica respond (or are full) within 5 s, otherwise HTTP 503."""
        # Replicas join the routing table only once they are warm.
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await asyncio.gather(self._tiers.compiler_info(), self._tiers.replica_info())
        except ApiError as error:
            if error.status != 429:  # a server at its capacity is healthy
                raise
        except Exception as error:
            raise ApiError(503, "not ready", code="not_ready") from error
        return {"status": "ok"}

    def _check_prompt(self, generation_request: dict[str, Any]) -> None:
        # A prompt above the limit would block the tokenizer for long.
        param = "prompt" if generation_request["messages"] is None else "messages"
        parts = [generation_request[param], generation_request.get("tools")]
        size = sum(len(json.dumps(part, ensure_ascii=False).encode()) for part in parts if part is not None)
        self._check_size(size, param)

    def _check_size(self, size: int, param: str) -> None:
        most = self._args.router.max_prompt_bytes
        if size > most:
            message = f"prompt is too long: {size} bytes > {most} maximum (the option router.max_prompt_bytes)"
            raise ApiError(400, message, param=param, code="context_length_exceeded")

    async def _served_chat_format(self) -> ChatFormat:
        if self._chat_format is None:
            info = await self._tiers.replica_info(*PROMPTS)
            template, prompts = info["chat_template"], info["generation_prompts"]
            thinking = Thinking.of_model(self._args.thinking, template, *prompts)
            self._chat_format = ChatFormat(ToolDialect.of_model(self._args.tool_format, template), thinking)
        return self._chat_format

    async def _grammar(self, body: GenerationBody, chat_format: ChatFormat | None, tenant: Tenant) -> Grammar | None:
        thinks = isinstance(body, ChatCompletionBody) and chat_format is not None and chat_format.thinks(body)
        if (key := body.grammar_key()) is not None:
            if thinks:
                message = "a compiled grammar applies to the whole output: send `thinking: false`, or its specification"
                raise ApiError(400, message, param="structured_outputs", code="invalid_value")
            return Grammar(key, None, "structured_outputs", only_own=not tenant.administrator)
        specification: GrammarSpecification
        places: Places = ()
        if isinstance(body, ChatCompletionBody) and chat_format is not None and (offer := body.offer()) is not None:
            specification, places = chat_format.tools(body, offer)
            param = "tools" if offer.text is None else body.constraint_field
            thinks = False
        elif (asked := body.specification) is not None:
            specification, param = asked
            if chat_format is not None:
                specification, places = chat_format.dialect.in_text(specification)
        elif body.banned_words is not None and self._args.replica.engine.kind == "vllm":
            # vLLM cannot roll tokens back, so the words are excluded by a constraint there.
            specification, param = banned_specification(body.banned_words), "banned_words"
        else:
            return None
        if thinks and chat_format is not None:
            specification, places = chat_format.thinking.specification(specification), Thinking.places(places)
        return await self._keys.grammar(specification, param, places, on_unsupported=body.on_unsupported)


def _check_memory() -> None:
    try:
        GUARD.check()
    except ProcessFullError as error:
        raise ApiError(503, str(error), code="out_of_memory") from error


async def _sent(
    answer: Answer | ResponsesAnswer | MessagesAnswer, stream: bool | None, generation: Generation
) -> Response:
    if stream:
        return EventStream(answer.blocks(), generation)
    async with aclosing(generation):
        return JSONResponse(await answer.whole(), headers=headers_of(generation.grammar))
