"""Endpoints of `/v1/grammars`: compile a constraint before its first use, get a grammar's status, delete a grammar.

A grammar is a compiled constraint. Responses contain the *grammar key*, by which later requests name the grammar.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Body, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from deployments.generation import Grammar
from deployments.http.client_fields import ClientModel
from deployments.http.deadline import Deadline
from deployments.http.errors import ERRORS, ApiError, errors
from deployments.http.examples import EXAMPLES
from deployments.http.fields import contradiction
from deployments.http.limits import LimitedCaller
from deployments.http.strict_json import StrictJsonRoute
from deployments.http.tenants import Caller, Tenant
from deployments.http.unenforced import Unenforced, headers_of
from deployments.openai.constraints import ON_UNSUPPORTED, ResponseFormat, StructuredOutputs
from deployments.routing.grammar_keys import GrammarKeys
from deployments.routing.tiers import Tiers
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.options import OnUnsupported
from grammar_workers.specification import GrammarSpecification

logger = get_logger(SERVE)

Key = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Grammar key: the field `grammar.key` of a response.")]


class GrammarBody(ClientModel):
    """Body of `POST /v1/grammars`: one constraint, in one of three formats."""

    renames: ClassVar[str] = "a body of /v1/grammars"
    response_format: ResponseFormat | None = None
    """Constraint in OpenAI's format."""
    structured_outputs: StructuredOutputs | None = None
    """Constraint in vLLM's format."""
    specification: GrammarSpecification | None = None
    """Constraint in the format of Turnstile's grammar compiler."""
    on_unsupported: OnUnsupported | None = Field(None, description=ON_UNSUPPORTED)
    wait: StrictBool = True
    """`true`: the server responds when the grammar is compiled. `false`: it responds immediately with HTTP 202."""

    @model_validator(mode="after")
    def _one(self) -> GrammarBody:
        if sum(getattr(self, name) is not None for name in self._SPELLINGS) != 1:
            listed = ", ".join(f"`{name}`" for name in self._SPELLINGS)
            raise PydanticCustomError("one_constraint", "give exactly one of {listed}", {"listed": listed})
        if self.constraint()[0] is None:
            raise contradiction(self.constraint()[1], "has nothing to compile")
        return self

    _SPELLINGS = ("response_format", "structured_outputs", "specification")

    def constraint(self) -> tuple[GrammarSpecification | None, str]:
        """Return the constraint as a specification for the compiler, and the name of the field that contains it.

        Returns:
            (specification, field), such as `(RegexSpecification(...), "structured_outputs")`. The specification is None
            if the field requests free text, or if it has only the key of a compiled grammar.
        """
        for name in self._SPELLINGS[:2]:
            if (spelled := getattr(self, name)) is not None:
                return spelled.specification(), name
        return self.specification, "specification"


class PlaceCost(BaseModel):
    """Part of a constraint that is slow to compile, with advice on how to change this part."""

    place: str = Field(
        description="Location in the specification: a JSON Pointer, or the line and column of a "
        "grammar's rule. `#`: the whole specification."
    )
    seconds: float = Field(description="CPU time in seconds for this location, without the locations inside of it.")
    change: str = Field(description="Change of the specification that makes compilation faster.")


class GrammarStatus(BaseModel):
    """Status of one grammar (compiled constraint): `queued`, `compiling` or `ready`.

    With `ready`, the object also has times and sizes.
    """

    key: str = Field(
        description="Grammar key. A request may send it in `structured_outputs.key` instead of the constraint."
    )
    object: Literal["grammar"] = "grammar"
    status: Literal["queued", "compiling", "ready"]
    source: str | None = Field(None, description="Level of the store that had the grammar, or `compiled`.")
    seconds: float | None = Field(None, description="Seconds for which this request waited for the grammar.")
    owner: str | None = Field(
        None,
        description="Tenant whose request compiled the grammar. Only this tenant and administrators see the field.",
    )
    notes: list[str] | None = Field(None, description="Warnings of the compiler, such as ignored keywords.")
    unenforced: list[Unenforced] | None = Field(
        None, description="With `on_unsupported: report`: keywords that are not enforced."
    )
    automaton_states: int | None = Field(None, description="Number of states of the automaton.")
    artifact_bytes: int | None = Field(None, description="Size in bytes of the stored automaton, compressed.")
    compile_seconds: float | None = Field(
        None, description="Duration of the compilation in seconds, by whichever server compiled the grammar."
    )
    first_mask_seconds: float | None = Field(
        None, description="Seconds for computing the first mask after the compilation."
    )
    memory_bytes: int | None = Field(None, description="Memory in bytes of the automaton with its first mask.")
    costs: list[PlaceCost] | None = Field(
        None, description="The three locations with the longest compile time, and a change for each."
    )


class Discarded(BaseModel):
    """Response of `DELETE /v1/grammars/{key}` after the grammar has been deleted."""

    key: str
    object: Literal["grammar"] = "grammar"
    deleted: Literal[True] = True


_DISCARDING = errors({403: "The grammar belongs to another tenant.", 409: "The grammar is being compiled."})


class Grammars:
    """Request handlers of the `/v1/grammars` endpoints.

    Args:
        tiers: Client of the grammar compilers and the model replicas.
        keys: Computes grammar keys, which are hashes of constraints.
        timeout_s: Time limit in seconds of a compilation that runs in the background (`wait: false`).
    """

    def __init__(self, tiers: Tiers, keys: GrammarKeys, *, timeout_s: float) -> None:
        self._tiers = tiers
        self._keys = keys
        self._timeout_s = timeout_s
        self._background: set[asyncio.Task[Any]] = set()

    async def compile(
        self, body: Annotated[GrammarBody, Body(openapi_examples=EXAMPLES["/v1/grammars"])], tenant: LimitedCaller
    ) -> Response:
        """Compile a constraint before its first use. With `wait: false`, respond at once (202, or 200 if ready)."""
        specification, param = body.constraint()
        assert specification is not None
        grammar = await self._keys.grammar(specification, param, on_unsupported=body.on_unsupported)
        if body.wait:
            return _answer(await self._tiers.compile(grammar, tenant.name), tenant)
        status = await self._status(grammar.key, tenant, param)
        if status["status"] == "unknown":
            task = asyncio.create_task(self._compile_quietly(grammar, tenant.name))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            status = {"key": grammar.key, "status": "queued"}
        return _answer(_known(status, param), tenant, accepted=True)

    async def status(self, key: Key, tenant: Caller) -> Response:
        """Return the status of a grammar (compiled constraint).

        HTTP 404: the client has no grammar with this key. HTTP 400: the constraint was rejected.
        """
        return _answer(_known(await self._status(key, tenant, "key"), "key"), tenant)

    async def discard(self, key: Key, tenant: Caller) -> Response:
        """Delete a grammar. HTTP 403: another client owns it. 404: it does not exist. 409: it is being compiled."""
        found = await self._tiers.discard_grammar(key, tenant.name, tenant.administrator)
        if found["status"] == "forbidden":
            raise ApiError(403, "the grammar belongs to another tenant", param="key", code="not_owner")
        if found["status"] in ("queued", "compiling"):
            raise ApiError(409, f"the grammar is {found['status']}; try again when it is ready", code="grammar_busy")
        if found["status"] == "unknown":
            raise ApiError.grammar_not_found(key)
        return JSONResponse(Discarded(key=key).model_dump())

    async def _status(self, key: str, tenant: Tenant, param: str) -> dict[str, Any]:
        """Return the status of a grammar, with `unenforced` as data of `Unenforced`."""
        status = await self._tiers.grammar_status(key, tenant.name, tenant.administrator)
        if "unenforced" in status:
            status = {**status, "unenforced": [{"param": param, **one} for one in status["unenforced"]]}
        return status

    async def _compile_quietly(self, grammar: Grammar, tenant: str) -> None:
        try:
            async with Deadline(self._timeout_s).bounds():
                await self._tiers.compile(grammar, tenant)
        except ApiError as error:
            logger.info("compilation failed: key=%s error=%s", grammar.key, error.detail.message)


def grammar_routes(grammars: Grammars) -> APIRouter:
    """Return the FastAPI routes of `/v1/grammars`: `POST` (compile), `GET /{key}` (status), `DELETE /{key}` (delete).

    Args:
        grammars: Handlers of the requests: its methods `compile`, `status` and `discard`.
    """
    api = APIRouter(route_class=StrictJsonRoute, prefix="/v1/grammars", tags=["grammars"], responses=ERRORS)

    not_ready = {"model": GrammarStatus, "description": "Not ready yet."}
    api.post("", name="compile_grammar", response_model=GrammarStatus, responses={202: not_ready})(grammars.compile)
    api.get("/{key}", name="grammar_status", response_model=GrammarStatus)(grammars.status)
    api.delete("/{key}", name="discard_grammar", response_model=Discarded, responses=_DISCARDING)(grammars.discard)
    return api


def _known(status: dict[str, Any], param: str) -> dict[str, Any]:
    if status["status"] == "unknown":
        raise ApiError.grammar_not_found(status["key"])
    if status["status"] == "refused":
        raise ApiError.of_grammar(status["error"], param=param)
    return status


def _answer(status: dict[str, Any], tenant: Tenant, *, accepted: bool = False) -> JSONResponse:
    if not tenant.administrator and status.get("owner") != tenant.name:
        status = {**status, "owner": None}
    body = GrammarStatus.model_validate(status).model_dump(exclude_none=True)
    code = 202 if accepted and status["status"] != "ready" else 200
    return JSONResponse(body, status_code=code, headers=headers_of(body))
