"""`/v1/grammars`: compiling ahead of the first request, and asking what became of it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Body, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from deployments.http import examples
from deployments.http.client_fields import ClientModel
from deployments.http.deadline import Deadline
from deployments.http.errors import ERRORS, ApiError, errors
from deployments.http.fields import contradiction
from deployments.http.limits import LimitedCaller
from deployments.http.strict_json import StrictJsonRoute
from deployments.http.tenants import Caller, Tenant
from deployments.http.unenforced import Unenforced, headers_of
from deployments.openai.constraints import ON_UNSUPPORTED, ResponseFormat, StructuredOutputs
from deployments.routing.grammar_keys import GrammarKeys
from deployments.routing.tiers import Grammar, Tiers
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.options import OnUnsupported
from grammar_workers.specification import GrammarSpecification

logger = get_logger(SERVE)

Key = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Grammar key, as an answer's `grammar.key` has it.")]


class GrammarBody(ClientModel):
    """Body of `POST /v1/grammars`: one constraint, in any of its three spellings."""

    renames: ClassVar[str] = "a body of /v1/grammars"
    response_format: ResponseFormat | None = Field(None, description="OpenAI's spelling.")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's spelling.")
    specification: GrammarSpecification | None = Field(None, description="The grammar library's own spelling.")
    on_unsupported: OnUnsupported | None = Field(None, description=ON_UNSUPPORTED)
    wait: StrictBool = Field(True, description="Answer when it is compiled; else at once with 202.")

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
        """The specification, None where the field asks for free text or a key, and the field's name."""
        for name in self._SPELLINGS[:2]:
            if (spelled := getattr(self, name)) is not None:
                return spelled.specification(), name
        return self.specification, "specification"


class PlaceCost(BaseModel):
    """A place of a specification that takes time to compile."""

    place: str = Field(description="JSON Pointer, or line and column of a grammar's rule; `#` is the whole.")
    seconds: float = Field(description="CPU time spent there, without places inside.")
    change: str = Field(description="What to change there.")


class GrammarStatus(BaseModel):
    """What is known about one grammar."""

    key: str = Field(description="Name it in `structured_outputs.key` instead of sending the specification.")
    object: Literal["grammar"] = "grammar"
    status: Literal["queued", "compiling", "ready"]
    source: str | None = Field(None, description="Where it was found: a tier of the store, or `compiled`.")
    seconds: float | None = Field(None, description="How long this request waited for it.")
    owner: str | None = Field(
        None, description="The tenant it was compiled for; told to that one and to administrators."
    )
    notes: list[str] | None = Field(None, description="What the compiler ignored, as the specification says.")
    unenforced: list[Unenforced] | None = Field(
        None, description="Keywords that are not enforced, where `on_unsupported` is `report`."
    )
    automaton_states: int | None = Field(None, description="States of the byte automaton.")
    artifact_bytes: int | None = Field(None, description="Size of the stored automaton, compressed.")
    compile_seconds: float | None = Field(None, description="Time that compiling took, wherever it was.")
    first_mask_seconds: float | None = Field(None, description="Time that the first mask took behind that.")
    memory_bytes: int | None = Field(None, description="Memory of the automaton with its first mask.")
    costs: list[PlaceCost] | None = Field(
        None, description="The three places where compiling took longest, and what to change there."
    )


class Discarded(BaseModel):
    """Answer of `DELETE /v1/grammars/{key}`."""

    key: str
    object: Literal["grammar"] = "grammar"
    deleted: Literal[True] = True


_DISCARDING = errors({403: "The grammar belongs to another tenant.", 409: "The grammar is being compiled."})


class Grammars:
    """What the paths do."""

    def __init__(self, tiers: Tiers, keys: GrammarKeys, *, timeout_s: float) -> None:
        self._tiers = tiers
        self._keys = keys
        self._timeout_s = timeout_s
        self._background: set[asyncio.Task[Any]] = set()

    async def compile(
        self, body: Annotated[GrammarBody, Body(openapi_examples=examples.GRAMMARS)], tenant: LimitedCaller
    ) -> Response:
        """Compile a constraint before the first request needs it."""
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
        """Return the state of a grammar. 404: the key is unknown or another tenant's; 400: the grammar was rejected."""
        return _answer(_known(await self._status(key, tenant, "key"), "key"), tenant)

    async def discard(self, key: Key, tenant: Caller) -> Response:
        """Remove a grammar from the store. Its owner may, and administrators; generations that use it go on."""
        found = await self._tiers.discard_grammar(key, tenant.name, tenant.administrator)
        if found["status"] == "forbidden":
            raise ApiError(403, "the grammar belongs to another tenant", param="key", code="not_owner")
        if found["status"] in ("queued", "compiling"):
            raise ApiError(409, f"the grammar is {found['status']}; try again when it is ready", code="grammar_busy")
        if found["status"] == "unknown":
            raise ApiError.grammar_not_found(key)
        return JSONResponse(Discarded(key=key).model_dump())

    async def _status(self, key: str, tenant: Tenant, param: str) -> dict[str, Any]:
        """A status, of which what is not enforced is data of `Unenforced`."""
        status = await self._tiers.grammar_status(key, tenant.name, tenant.administrator)
        if "unenforced" in status:
            status = {**status, "unenforced": [{"param": param, **one} for one in status["unenforced"]]}
        return status

    async def _compile_quietly(self, grammar: Grammar, tenant: str) -> None:
        try:
            async with Deadline(self._timeout_s).bounds():
                await self._tiers.compile(grammar, tenant)
        except ApiError as error:
            logger.info("grammar %s: %s", grammar.key, error.detail.message)


def grammar_routes(grammars: Grammars) -> APIRouter:
    """The paths around `grammars`."""
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
