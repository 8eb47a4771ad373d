"""Error responses in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`.

The request causes a 4xx error, and the message gives the location. The server causes a 5xx error, and the message has
no internal details.
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
from deployments.validation_messages import message_of
from grammar_workers.errors import shortened
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.near_names import NearNames

logger = get_logger(SERVE)

# Errors of this path, and of the paths below it, have Anthropic's format.
ANTHROPIC_PATH = "/v1/messages"
# Maximum lengths in characters. An error does not repeat long values of the request.
MAX_MESSAGE, MAX_POINTER, MAX_PARAM = 1500, 500, 300


class ErrorDetail(BaseModel):
    """Description of an error.

    `param` is the wrong field of the request. `code` identifies the kind of error. Both may be null. `pointer` (JSON
    Pointer to the error) and `position` (offset in characters) are present only for errors in a constraint.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    pointer: str | None = None
    position: int | None = None


class ErrorBody(BaseModel):
    """Body of every error response, in OpenAI's format."""

    error: ErrorDetail


# HTTP status -> documentation of the response, for FastAPI's `responses`.
Answers = dict[int | str, dict[str, Any]]


def errors(descriptions: dict[int, str]) -> Answers:
    """Return the OpenAPI documentation of error responses.

    Args:
        descriptions: HTTP status -> description of the case in which the response has this status.

    Returns:
        HTTP status -> documentation of the response, for the argument `responses` of FastAPI's routes.
    """
    return {status: {"model": ErrorBody, "description": when} for status, when in descriptions.items()}


# Documentation of the errors that any path may return.
ERRORS = errors(
    {
        400: "The request or its constraint has a mistake. The error has the location.",
        401: "The request has no valid API key.",
        404: "The model, grammar or path does not exist.",
        408: "The request did not arrive in time, or the response exceeded the limit of the server.",
        413: "The body is too large.",
        415: "The body is compressed.",
        429: "The server is at its capacity, or the tenant has reached a limit. See `Retry-After`.",
        500: "Error of the server.",
        502: "The router failed before it answered. Repeat the request.",
        503: "The server is shutting down, or no router can be reached. See `Retry-After`.",
    }
)

# Documentation of the responses of paths that generate text: errors, and an event stream for `stream: true`.
GENERATION: Answers = {
    **ERRORS,
    200: {"content": {"text/event-stream": {"schema": {"type": "object", "description": "Server-sent events."}}}},
    **errors(
        {
            408: "The request did not arrive in time, or the response exceeded `timeout_s` or the server's limit.",
            503: "The grammar did not arrive in time, or the server is shutting down. See `Retry-After`.",
        }
    ),
}


class AnthropicErrorDetail(ErrorDetail):
    """Description of an error in Anthropic's format. It also has those fields of OpenAI's format that are not null."""

    param: str | None = None
    code: str | None = None


class AnthropicErrorBody(BaseModel):
    """Body of every error response of `/v1/messages`, in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


def in_anthropics_words(answers: Answers) -> Answers:
    """Return a copy of the OpenAPI documentation of responses, in which errors have Anthropic's format.

    Args:
        answers: HTTP status -> documentation of a response, in which errors have OpenAI's format; not changed. Entries
            without `model` are not errors, and remain as they are.
    """
    return {
        status: {**answer, "model": AnthropicErrorBody} if "model" in answer else answer
        for status, answer in answers.items()
    }


# Translation of JSON Pointers from a grammar specification to the request body. Each entry has the beginning of a
# pointer into the specification, its replacement in the body, and optionally the field of the body, if it is not the
# field of the specification.
Places = tuple[tuple[str, ...], ...]


def in_the_body(
    param: str | None, pointer: str | None, places: Sequence[tuple[str, ...]]
) -> tuple[str | None, str | None]:
    """Translate the location of an error in a specification (constraint for the compiler) to the request body.

    For example, `places` is `(("/tags/0/content/schema", ""),)` if the schema of the request is a part of a larger
    specification. The pointer `/tags/0/content/schema/minimum` then becomes `/minimum`.

    Args:
        param: Field of the body from which the specification was made.
        pointer: JSON Pointer to the error in the specification. None: the error has no pointer.
        places: Translations: (prefix of a pointer into the specification, replacement), or (prefix, replacement, field
            of the body) if the field is not `param`. The first translation whose prefix matches is applied.

    Returns:
        The field of the body, and the JSON Pointer into that field. If no translation matches, both are unchanged.
    """
    for inside, place, *field in places:
        if pointer is not None and f"{pointer}/".startswith(f"{inside}/"):
            return field[0] if field else param, place + pointer[len(inside) :]
    return param, pointer


class ApiError(Exception):
    """Exception that an error handler turns into an HTTP error response. Code that processes a request raises it.

    Args:
        status: HTTP status, 400 or more.
        message: Description for the client. The response has at most its first 1500 characters (`MAX_MESSAGE`).
        param: Wrong field of the request. None: the error is not in a single field.
        code: Code of the error, such as `invalid_value`. None: no code.
        pointer: JSON Pointer to the error in the constraint of the request. None: the error has no such location.
        position: Character offset of the error in a regular expression or grammar, from 0. None: no offset.
        headers: Additional headers of the response. None: no headers.

    Attributes:
        detail: Fields of the error body, with shortened texts.
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
        """Translate the location of this error to a request body of another format, in place.

        For example, the router translates a body of `/v1/messages` to a chat completion. The JSON Pointer in the
        message is translated, too.

        Args:
            words: Function that gets a field and a JSON Pointer in the chat completion. It returns the field and the
                JSON Pointer in the body that the client has sent.

        Returns:
            This error.
        """
        detail = self.detail
        param, pointer = words(detail.param, detail.pointer)
        if pointer is not None and detail.pointer is not None:
            detail.message = detail.message.replace(detail.pointer, pointer)
        detail.param, detail.pointer = param, pointer
        return self

    def body(self) -> dict[str, Any]:
        """Return the response body in OpenAI's format. `pointer` and `position` are included only if they are set."""
        places = {name for name in ("pointer", "position") if getattr(self.detail, name) is None}
        return {"error": self.detail.model_dump(exclude=places)}

    def anthropic_body(self, request_id: str | None) -> dict[str, Any]:
        """Return the response body in Anthropic's format, with those fields of OpenAI's format that are not null.

        Args:
            request_id: Id of the request. None: the request has no valid id.
        """
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
        """Return the error (400) for a constraint that is malformed, unsupported, unsatisfiable or too large.

        Args:
            error: Error of the grammar compiler as plain data (`GrammarError.to_dict()`).
            param: Field of the request body that contains the constraint.
            places: Translation of JSON Pointers from `specification` to the body, as for `in_the_body`.
            specification: The constraint as plain data, in the form that the compiler gets. The message quotes the
                value at the location of the error. None: the message quotes nothing.

        Returns:
            An error with the location in the request body.
        """
        inside, position = error.get("pointer"), error.get("position")
        field, pointer = in_the_body(param, inside, places)
        shown = None if pointer is None else shortened(pointer, MAX_POINTER)
        where = place_in_line(inside, shown, position, specification)
        return cls(400, error["message"] + where, param=field, code=error["code"], pointer=pointer, position=position)

    @classmethod
    def grammar_not_found(cls, key: str) -> ApiError:
        """Return the error (404) for an unknown grammar key: the grammar was never compiled, or was evicted.

        Args:
            key: The grammar key (hash that identifies a compiled grammar).
        """
        message = f"no grammar has the key {key}: send its specification, or POST it to /v1/grammars again"
        return cls(404, message, param="key", code="grammar_not_found")

    @classmethod
    def of_replica(cls, error: dict[str, Any]) -> ApiError:
        """Return the error response for an error that a model replica has reported, such as a prompt that is too long.

        Args:
            error: Error of the replica as plain data: `status` (HTTP status), `message`, and optionally `param` (wrong
                field of the request) and `code`.
        """
        return cls(error["status"], error["message"], param=error.get("param"), code=error.get("code"))

    @classmethod
    def full(cls, what: str = "the server is at its capacity", *, retry_after_s: float | None = None) -> ApiError:
        """Return the error (429) for a full queue, with the header `Retry-After`.

        Args:
            what: Beginning of the message: a clause such as "the server is at its capacity".
            retry_after_s: Seconds after which the client should try again, rounded to at least 1. None: 1 second.
        """
        after = max(1, round(retry_after_s or 1))
        headers = {"Retry-After": str(after)}
        return cls(429, f"{what}; try again in {after} s", code="server_full", headers=headers)

    @classmethod
    def internal(cls) -> ApiError:
        """Return the error (500) for a fault in the server. The message is `internal error`, without details."""
        return cls(500, "internal error", code="internal_error")


# Errors that were sent to the client of the current context's request. `deployments.http.outcomes` counts them.
TOLD: contextvars.ContextVar[list[ApiError]] = contextvars.ContextVar("told")


def tell(error: ApiError) -> ApiError:
    """Record that the request of the current context (`contextvars`) ends with an error, for the counter of requests.

    Args:
        error: The error that is sent to the client.

    Returns:
        `error`.
    """
    TOLD.get([]).append(error)
    return error


class CheckedIds:
    """ASGI middleware that checks the header `x-request-id`. If the header is invalid or repeated, it responds 400."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, or send the error if the id is invalid."""
        if scope["type"] != "http" or has_allowed_id((request := Request(scope)).headers):
            await self._app(scope, receive, send)
            return
        message = f"`{HEADER}` takes up to 128 letters, digits and . _ : / + = -"
        refusal = ApiError(400, message, param=HEADER, code="invalid_value", headers={"Connection": "close"})
        await _response(request, refusal)(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Register handlers that turn every error of an application, including FastAPI's own errors, into an error body.

    The function also adds the middleware `CheckedIds`, which rejects invalid request ids.

    Args:
        app: Application; changed in place. `app.state.paths` must list its paths, for suggestions in 404 errors.
    """
    app.add_middleware(CheckedIds)

    @app.exception_handler(ApiError)
    async def _api_error(request: Request, error: ApiError) -> JSONResponse:
        return _response(request, error)

    @app.exception_handler(RequestValidationError)
    async def _invalid_path(request: Request, error: RequestValidationError) -> JSONResponse:
        # Errors of bodies are handled before, in `deployments.http.strict_json`.
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return _response(request, ApiError(400, f"`{name}`: {message_of(first)}", param=name, code="invalid_value"))

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
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow")
        refused = f"{request.method} is not allowed here: {shortened(request.url.path, MAX_PARAM)}"
        return refused if allowed is None else f"{refused} takes {allowed}"
    if error.status_code != 404:
        return str(error.detail)
    near = _near_path(request)
    asked = f"no such path: {request.method} {shortened(request.url.path, MAX_PARAM)}"
    return asked if near is None else f"{asked}; is `{near}` meant?"


def _near_path(request: Request) -> str | None:
    """Return a known path that ends with the requested one, or the reverse, or that differs in one letter."""
    path, known = request.url.path.rstrip("/"), request.app.state.paths
    ends = (one for one in sorted(known, key=len) if path and (one.endswith(path) or path.endswith(one)))
    return next(ends, None) or NearNames(known).find(path)
