"""Who is asking: tenants by API key, or by a header where no keys are configured.

A key file is YAML, with the SHA-256 of each key, never the key itself:

    keys:
      - {tenant: search, sha256: 9a2e1f4fe11c21557f17269fb621f52da73ba8c27bd916b176ecfba6b1f793e7}
      - tenant: operations
        sha256: 7f4bc4a78d3565285f36a0673701cfc30961d312450b9ef5f313710ef3fa07f4
        administrator: true
    limits: # of single tenants, for all router replicas together
      search: {rate_limit: {requests_per_minute: 120, burst: 20}, concurrent_requests: 16, new_grammars: 4}

A file with the digests above, which are those of published examples, is refused.
The file is read again every few seconds. A key that it no longer has is refused within `RELOAD_S`, all keys where the
file is gone; a file that cannot be used is reported in the log, and the keys before it stay.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from deployments.arguments import RateLimit
from deployments.config_file import problem_lines
from deployments.http.errors import ApiError
from grammar_workers.logs import SERVE, get_logger

logger = get_logger(SERVE)

RELOAD_S = 5.0
"""Seconds after which the key file is read again."""
_EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
_LOOKS = "such a file looks like `keys: [{tenant: NAME, sha256: HEX}]` (docs/api.md, Tenants)"
_EXAMPLE_DIGESTS = [hashlib.sha256(key).hexdigest() for key in (b"search-example-key", b"operations-example-key")]
"""Digests of examples/kubernetes/keys.yaml, whose keys everybody can read."""
TENANT_HEADER = "x-turnstile-tenant"
ANONYMOUS = "anonymous"
_NAME = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of the client in quotas, queues and logs.")


class TenantLimits(BaseModel):
    """Limits of one tenant. Each router replica enforces its share of them: the limit divided by their number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate_limit: RateLimit | None = Field(None, description="In place of `router.rate_limit`.")
    concurrent_requests: int | None = Field(None, ge=1, description="Most requests under way; more are answered 429.")
    new_grammars: int | None = Field(
        None, ge=1, description="Most new grammars that compile at a time; further requests wait."
    )


class Tenant(BaseModel):
    """A client whose work is queued, limited and owned apart from that of others."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, _NAME]
    administrator: bool = False
    limits: TenantLimits = TenantLimits()


class ApiKey(BaseModel):
    """One entry of a key file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: Annotated[str, _NAME]
    sha256: str = Field(description="Hexadecimal SHA-256 of the key.")
    administrator: bool = Field(False, description="May discard what belongs to other tenants.")

    @field_validator("sha256")
    @classmethod
    def _is_a_digest(cls, sha256: str) -> str:
        if re.fullmatch("[0-9a-f]{64}", sha256) is None:
            raise ValueError(
                "must be 64 lower-case hexadecimal digits; `printf %s KEY | sha256sum` prints those of KEY"
            )
        return sha256


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[ApiKey] = Field(min_length=1)
    limits: dict[str, TenantLimits] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _limits_are_of_tenants_with_a_key(self) -> _KeyFile:
        if unknown := self.limits.keys() - {key.tenant for key in self.keys}:
            raise ValueError(f"`limits` names tenants without a key: {', '.join(sorted(unknown))}")
        return self

    @field_validator("keys")
    @classmethod
    def _check_digests(cls, keys: list[ApiKey]) -> list[ApiKey]:
        for digest, many in Counter(key.sha256 for key in keys).items():
            if digest == _EMPTY_DIGEST:
                raise ValueError(f"{digest} is the SHA-256 of the empty text, which is no key")
            if digest in _EXAMPLE_DIGESTS:
                raise ValueError(
                    f"{digest} is the SHA-256 of a published example key. Make a key with `openssl rand -hex 24` or"
                    " `python3 -c 'import secrets; print(secrets.token_hex(24))'`, and write the output of"
                    " `printf %s KEY | sha256sum` in its place"
                )
            if many > 1:
                raise ValueError(f"{digest} occurs {many} times; a key has one tenant")
        return keys


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a name twice, of which YAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for name, many in Counter(self.construct_object(key) for key, _ in node.value).items():
            if many > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} occurs {many} times", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_keys(text: bytes) -> _KeyFile:
    content = yaml.load(text, _Loader)
    if not isinstance(content, dict):
        raise ValueError(f"it is empty, or no mapping; {_LOOKS}")
    return _KeyFile.model_validate(content)


def _reason(error: Exception) -> str:
    """One line, which never repeats a value: it may be a key."""
    if isinstance(error, ValidationError):
        return f"{'; '.join(problem_lines(error, _KeyFile))}; {_LOOKS}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1} is not YAML, or a `[` or `{{` stays open: {error.problem}; {_LOOKS}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Tenants:
    """Finds the tenant of a request.

    Args:
        keys: The API keys. None: everybody may ask, and a header says which tenant it is for.
        limits: Limits of single tenants, by name.
        path: File that is read again for keys that are new or revoked. None: the keys never change.
    """

    def __init__(
        self,
        keys: list[ApiKey] | None = None,
        limits: Mapping[str, TenantLimits] | None = None,
        path: Path | None = None,
    ) -> None:
        self._limits = limits or {}
        self._by_digest = None if keys is None else {key.sha256: key for key in keys}
        self._path = path
        self._text: bytes | None = None
        self._read_at = time.monotonic()

    @classmethod
    def from_file(cls, path: str | None) -> Tenants:
        """Raises ValueError, naming the place, for a file that is not as described above."""
        if path is None:
            return cls()
        try:
            whole = Path(path).expanduser()
            file = _read_keys(whole.read_bytes())
            return cls(file.keys, file.limits, whole)
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            raise ValueError(f"the API key file {path} cannot be used: {_reason(error)}") from error

    def _reload(self) -> None:
        """Read the file again where that was long ago."""
        if self._path is None or time.monotonic() - self._read_at < RELOAD_S:
            return
        self._read_at = time.monotonic()
        try:
            text = self._path.read_bytes()
            if text != self._text:
                file = _read_keys(text)
                self._by_digest, self._limits = {key.sha256: key for key in file.keys}, file.limits
                self._text = text
        except FileNotFoundError:
            logger.error("API key file is gone, refusing all keys: path=%s", self._path)
            self._by_digest, self._text = {}, None
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            logger.error(
                "API key file cannot be used, keeping the keys before it: path=%s error=%s", self._path, _reason(error)
            )

    def tenant(self, api_key: str | None, header: str | None) -> Tenant:
        """Raises `ApiError` 401 without a valid key where keys are configured."""
        self._reload()
        if self._by_digest is None:
            try:
                return Tenant(name=header or ANONYMOUS, administrator=True)
            except ValidationError as error:
                message = f"`{TENANT_HEADER}` takes up to 64 letters, digits, dots, underscores and hyphens"
                raise ApiError(400, message, param=TENANT_HEADER, code="invalid_value") from error
        # A digest is looked up, so how long that takes tells nothing about the keys.
        # The bytes that were sent: headers are decoded as Latin-1.
        entry = self._by_digest.get(hashlib.sha256(api_key.encode("latin-1")).hexdigest()) if api_key else None
        if entry is None:
            missing = "send an API key: `Authorization: Bearer ...` or `x-api-key: ...`"
            what = missing if api_key is None else "the API key is not valid"
            raise ApiError(401, what, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        limits = self._limits.get(entry.tenant, TenantLimits())
        return Tenant(name=entry.tenant, administrator=entry.administrator, limits=limits)


_BEARER = HTTPBearer(auto_error=False, description="Needed where the server has an API key file.")


async def _authenticated(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Tenant:
    tenants: Tenants = request.app.state.tenants
    # Anthropic's clients have a header of their own.
    api_key = request.headers.get("x-api-key") if credentials is None else credentials.credentials
    return tenants.tenant(api_key, request.headers.get(TENANT_HEADER))


async def _authenticated_maybe(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Tenant | None:
    try:
        return await _authenticated(request, credentials)
    except ApiError as error:
        if error.status != 401:
            raise
        return None


Caller = Annotated[Tenant, Depends(_authenticated)]
"""A path operation's parameter of this type makes the path need an API key, where there are any."""
Visitor = Annotated[Tenant | None, Depends(_authenticated_maybe)]
"""The same of a path that shows less to those without a key: None for them."""
