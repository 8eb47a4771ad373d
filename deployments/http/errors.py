"""Errors as clients of OpenAI's API expect them: `{"error": {"message", "type", "param", "code"}}`.

4xx is the request's fault and says where; 5xx is ours and says nothing about the inside.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.error_excerpt import place_in_line
from deployments.http.error_types import anthropic_error_type, error_type
from deployments.http.request_id import ANTHROPIC_HEADER, HEADER, has_allowed_id, sent_request_id
from deployments.http.unenforced import InTheseWords
from grammar_workers.errors import shortened
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.near_names import NearNames

logger = get_logger(SERVE)

ANTHROPIC_PATH = "/v1/messages"
"""Under it errors are told in Anthropic's words."""
MAX_MESSAGE, MAX_POINTER, MAX_PARAM = 1500, 500, 300
"""Characters: an error does not repeat what it was given at length."""


class ErrorDetail(BaseModel):
    """What went wrong; `pointer` and `position` only for a grammar specification."""

    message: str
    type: str
    param: str | None
    code: str | None
    pointer: str | None = None
    position: int | None = None


class ErrorBody(BaseModel):
    """Body of every answer that is not a success."""

    error: ErrorDetail


Answers = dict[int | str, dict[str, Any]]
"""The documentation of what a path may answer, by status."""


def errors(descriptions: dict[int, str]) -> Answers:
    """When a path answers with which status and the usual body."""
    return {status: {"model": ErrorBody, "description": when} for status, when in descriptions.items()}


ERRORS = errors(
    {
        400: "The request or its grammar specification is at fault; says where.",
        401: "The server wants an API key.",
        404: "No such model, grammar or path.",
        408: "The request did not arrive in time, or the answer took longer than the server allows.",
        413: "The body is too large.",
        415: "The body is compressed.",
        429: "The server is at its capacity, or the tenant at its rate limit; see `Retry-After`.",
        500: "A fault of the server.",
        502: "The router died before it answered; repeat the request.",
        503: "The server is shutting down, or no router can be reached; see `Retry-After`.",
    }
)
"""What any path may answer, for its documentation."""

GENERATION: Answers = {
    **ERRORS,
    200: {"content": {"text/event-stream": {"schema": {"type": "object", "description": "Server-sent events."}}}},
    **errors(
        {
            408: "The request did not arrive in time, or the answer was not complete within its `timeout_s`, or the "
            "server's.",
            503: "The grammar did not arrive in time, or the server is shutting down; see `Retry-After`.",
        }
    ),
}
"""What paths that generate may answer: a stream, too, if the body asks for one."""


class AnthropicErrorDetail(ErrorDetail):
    """What went wrong, in Anthropic's words; the other fields as in `ErrorDetail`, where they say something."""

    param: str | None = None
    code: str | None = None


class AnthropicErrorBody(BaseModel):
    """Body of every answer under `/v1/messages` that is not a success."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


def in_anthropics_words(answers: Answers) -> Answers:
    """The same answers under `/v1/messages`."""
    return {
        status: {**answer, "model": AnthropicErrorBody} if "model" in answer else answer
        for status, answer in answers.items()
    }


Places = tuple[tuple[str, ...], ...]
"""Beginnings of pointers into a specification, what the client wrote there, and its field where it is another one."""


def in_the_body(
    param: str | None, pointer: str | None, places: Sequence[tuple[str, ...]]
) -> tuple[str | None, str | None]:
    """The field where the client wrote what stands at a pointer into a specification, and the pointer into that.

    `param` is the field of the specification.
    """
    for inside, place, *field in places:
        if pointer is not None and f"{pointer}/".startswith(f"{inside}/"):
            return field[0] if field else param, place + pointer[len(inside) :]
    return param, pointer


class ApiError(Exception):
    """An answer other than success; raised anywhere on a request's way, turned into its body at the edge.

    `param` names the field of the HTTP body, `pointer` (JSON Pointer) and `position` (character offset) the place
    inside a grammar specification.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        pointer: str | None = None,
        position: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.detail = ErrorDetail(
            message=shortened(message, MAX_MESSAGE),
            type=error_type(status),
            param=None if param is None else shortened(param, MAX_PARAM),
            code=code,
            pointer=None if pointer is None else shortened(pointer, MAX_POINTER),
            position=position,
        )

    def move(self, words: InTheseWords) -> ApiError:
        """Tell the place by other names. Return the error."""
        detail = self.detail
        param, pointer = words(detail.param, detail.pointer)
        if pointer is not None and detail.pointer is not None:
            detail.message = detail.message.replace(detail.pointer, pointer)
        detail.param, detail.pointer = param, pointer
        return self

    def body(self) -> dict[str, Any]:
        """The four keys of OpenAI's body, and the place inside the specification when there is one."""
        places = {name for name in ("pointer", "position") if getattr(self.detail, name) is None}
        return {"error": self.detail.model_dump(exclude=places)}

    def anthropic_body(self, request_id: str | None) -> dict[str, Any]:
        """The body that clients of Anthropic's API expect, with the places that ours has."""
        told = {**self.detail.model_dump(exclude_none=True), "type": anthropic_error_type(self.status)}
        return {"type": "error", "error": told, "request_id": request_id}

    @classmethod
    def of_grammar(
        cls,
        error: dict[str, Any],
        *,
        param: str,
        places: Places = (),
        specification: dict[str, Any] | None = None,
    ) -> ApiError:
        """The 400 of a specification that is malformed, unsupported, unsatisfiable or too large.

        `error` is `GrammarError.to_dict()`: the message names the keyword. `specification`, where it is at hand, has
        the value that is shown.
        """
        inside, position = error.get("pointer"), error.get("position")
        field, pointer = in_the_body(param, inside, places)
        shown = None if pointer is None else shortened(pointer, MAX_POINTER)
        where = place_in_line(inside, shown, position, specification)
        return cls(400, error["message"] + where, param=field, code=error["code"], pointer=pointer, position=position)

    @classmethod
    def grammar_not_found(cls, key: str) -> ApiError:
        """The 404 of a key that nobody has compiled, or that made room for others."""
        message = f"no grammar has the key {key}: send its specification, or POST it to /v1/grammars again"
        return cls(404, message, param="key", code="grammar_not_found")

    @classmethod
    def of_replica(cls, error: dict[str, Any]) -> ApiError:
        """An error that a model replica reported for this request, such as a prompt that does not fit."""
        return cls(error["status"], error["message"], param=error.get("param"), code=error.get("code"))

    @classmethod
    def full(cls, what: str = "the server is at its capacity", *, retry_after_s: float | None = None) -> ApiError:
        """The 429 of a queue that is full."""
        after = max(1, round(retry_after_s or 1))
        headers = {"Retry-After": str(after)}
        return cls(429, f"{what}; try again in {after} s", code="server_full", headers=headers)

    @classmethod
    def internal(cls) -> ApiError:
        """A fault of ours; its traceback is in the log."""
        return cls(500, "internal error", code="internal_error")


TOLD: contextvars.ContextVar[list[ApiError]] = contextvars.ContextVar("told")
"""Errors that the client of this context's request has been told (`deployments.http.outcomes`)."""


def tell(error: ApiError) -> ApiError:
    """Count the request of this context as one that ended with `error`. Returns `error`."""
    TOLD.get([]).append(error)
    return error


class CheckedIds:
    """ASGI middleware: a request whose `x-request-id` is not as it may be gets no further, on any path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or has_allowed_id((request := Request(scope)).headers):
            await self._app(scope, receive, send)
            return
        message = f"`{HEADER}` takes up to 128 letters, digits and . _ : / + = -"
        refusal = ApiError(400, message, param=HEADER, code="invalid_value", headers={"Connection": "close"})
        await _response(request, refusal)(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app`, also those of the framework, leave in the one body."""
    app.add_middleware(CheckedIds)

    @app.exception_handler(ApiError)
    async def _api_error(request: Request, error: ApiError) -> JSONResponse:
        return _response(request, error)

    @app.exception_handler(RequestValidationError)
    async def _invalid_path(request: Request, error: RequestValidationError) -> JSONResponse:
        # Bodies have told what is wrong with them already (`deployments.http.strict_json`).
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return _response(request, ApiError(400, f"`{name}`: {first['msg']}", param=name, code="invalid_value"))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else None
        return _response(request, ApiError(error.status_code, _framework_message(error, request), headers=headers))

    @app.exception_handler(Exception)
    async def _fault(request: Request, error: Exception) -> JSONResponse:
        logger.exception("request failed", exc_info=error)
        return _response(request, ApiError.internal())


def _response(request: Request, error: ApiError) -> JSONResponse:
    tell(error)
    is_anthropics = f"{request.url.path}/".startswith(f"{ANTHROPIC_PATH}/")
    if not is_anthropics:
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers)
    request_id = sent_request_id(request)
    headers = dict(error.headers or {}) | ({} if request_id is None else {ANTHROPIC_HEADER: request_id})
    return JSONResponse(error.anthropic_body(request_id), status_code=error.status, headers=headers)


def _framework_message(error: HTTPException, request: Request) -> str:
    if error.status_code != 404:
        return str(error.detail)
    near = _near_path(request)
    asked = f"no such path: {request.method} {shortened(request.url.path, MAX_PARAM)}"
    return asked if near is None else f"{asked}; is `{near}` meant?"


def _near_path(request: Request) -> str | None:
    """Return the path that may be meant: one that has an end in common with the request's, or differs in a letter."""
    path, known = request.url.path.rstrip("/"), request.app.state.paths
    ends = (one for one in sorted(known, key=len) if path and (one.endswith(path) or path.endswith(one)))
    return next(ends, None) or NearNames(known).find(path)
