"""The path `/v1/responses`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from fastapi.responses import JSONResponse

from deployments.http import examples
from deployments.http.errors import GENERATION, ApiError
from deployments.http.event_stream import EventStream
from deployments.http.limits import LimitedCaller
from deployments.http.strict_json import StrictJsonRoute
from deployments.openai.responses.answer import Response as ResponseModel
from deployments.openai.responses.answer import ResponsesAnswer
from deployments.openai.responses.body import ResponsesBody, in_these_words
from deployments.routing.service import Service


def responses_routes(service: Service) -> APIRouter:
    """The path over `service`."""
    api = APIRouter(route_class=StrictJsonRoute, tags=["completions"], responses=GENERATION)

    @api.post("/v1/responses", response_model=ResponseModel)
    async def responses(
        body: Annotated[ResponsesBody, Body(openapi_examples=examples.RESPONSES)],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Answer a conversation in the shape of OpenAI's newer endpoint, under a constraint if one is given."""
        try:
            begun = await service.begin(body.chat, request, tenant)
        except ApiError as error:
            raise in_these_words(error) from error
        answer = ResponsesAnswer(
            body, begun.generation, begun.readers[0], request_id=begun.request_id, model=service.model
        )
        if body.stream:
            return EventStream(answer.blocks(), begun.generation)
        async with aclosing(begun.generation):
            return JSONResponse(await answer.whole())

    return api
