"""Tenants of requests, identified by API key, or by a header if no keys are configured.

A *tenant* is a client with its own queue, its own limits and its own grammars. A key file is YAML. It has the SHA-256
of each key, never the key itself:

    keys:
      - {tenant: search, sha256: 9a2e1f4fe11c21557f17269fb621f52da73ba8c27bd916b176ecfba6b1f793e7}
      - tenant: operations
        sha256: 7f4bc4a78d3565285f36a0673701cfc30961d312450b9ef5f313710ef3fa07f4
        administrator: true
    limits: # of single tenants, for all router replicas together
      search: {rate_limit: {requests_per_minute: 120, burst: 20}, concurrent_requests: 16, new_grammars: 4}

A file with the digests above is rejected, because they belong to published examples. The file is read again every
`RELOAD_S` seconds, so a removed key is rejected within this time. If the file is missing, all keys are rejected. If the
file is invalid, the previous keys stay valid, and the log has the error.
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
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from deployments.http.errors import ApiError
from deployments.validation_messages import problem_lines
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.validation import DocumentedModel

logger = get_logger(SERVE)

# Seconds after which the key file is read again.
RELOAD_S = 5.0
_EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
_LOOKS = "such a file looks like `keys: [{tenant: NAME, sha256: HEX}]` (docs/authentication.md)"
# Digests in examples/kubernetes/keys.yaml. Everybody can read the keys.
_EXAMPLE_DIGESTS = [hashlib.sha256(key).hexdigest() for key in (b"search-example-key", b"operations-example-key")]
# Header that names the tenant if no keys are configured.
TENANT_HEADER = "x-turnstile-tenant"
# Name of the tenant of requests without that header.
ANONYMOUS = "anonymous"
_NAME = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of the tenant in limits, queues and logs.")


class RateLimit(DocumentedModel, extra="forbid"):
    """Rate limit of one tenant (client) as a token bucket: requests per minute on average, and burst size."""

    requests_per_minute: float = Field(gt=0)
    """Average number of requests per minute."""
    burst: int = Field(ge=1)
    """Maximum number of requests at once after a pause (size of the token bucket)."""


class TenantLimits(DocumentedModel, extra="forbid", frozen=True):
    """Limits of one tenant (client), for all router replicas together. Each router replica enforces its share."""

    rate_limit: RateLimit | None = None
    """Rate limit of this tenant. It replaces `router.rate_limit`."""
    concurrent_requests: int | None = Field(None, ge=1)
    """Maximum number of open requests. Further requests get HTTP 429."""
    new_grammars: int | None = Field(None, ge=1)
    """Maximum number of uncached grammars that compile at the same time. Further requests wait."""


class Tenant(BaseModel, frozen=True):
    """Client with its own queue, its own limits and its own grammars.

    Attributes:
        name: Name of the tenant in limits, queues and logs.
        administrator: True if the tenant may use and discard the grammars of all tenants. Without API keys, this is
            true for every client.
        limits: Limits of this tenant only. None in a field: the server's limit applies, if there is one.
    """

    name: Annotated[str, _NAME]
    administrator: bool = False
    limits: TenantLimits = TenantLimits()


class ApiKey(DocumentedModel, extra="forbid", frozen=True):
    """Entry of a key file: the SHA-256 of an API key, and the tenant (client) to whom the key belongs."""

    tenant: Annotated[str, _NAME]
    sha256: str
    """Hexadecimal SHA-256 of the key."""
    administrator: bool = False
    """`true`: the key may use and delete the grammars of all tenants."""

    @field_validator("sha256")
    @classmethod
    def _is_a_digest(cls, sha256: str) -> str:
        if re.fullmatch("[0-9a-f]{64}", sha256) is None:
            raise ValueError(
                "must be 64 lower-case hexadecimal digits; `printf %s KEY | sha256sum` prints those of KEY"
            )
        return sha256


class _KeyFile(BaseModel, extra="forbid"):
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
    """YAML loader that rejects a mapping with duplicate names, of which YAML keeps the last."""

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
    """Describe an error in one line without any value of the file, which may be a key."""
    if isinstance(error, ValidationError):
        return f"{'; '.join(problem_lines(error, _KeyFile))}; {_LOOKS}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1} is not YAML, or a `[` or `{{` stays open: {error.problem}; {_LOOKS}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Tenants:
    """Lookup of the tenant (client) of a request, by API key or by a header.

    Args:
        keys: Hashes of the API keys, with the tenant of each key. None: requests need no key, and the header
            `x-turnstile-tenant` names the tenant.
        path: Key file, from which the keys and the limits of tenants are read, again every 5 s (`RELOAD_S`). None: the
            keys never change.
    """

    def __init__(self, keys: list[ApiKey] | None = None, path: Path | None = None) -> None:
        self._limits: Mapping[str, TenantLimits] = {}
        self._by_digest = None if keys is None else {key.sha256: key for key in keys}
        self._path = path
        self._text: bytes | None = None
        self._read_at = time.monotonic()
        if path is not None:
            self._read(path)

    @classmethod
    def from_file(cls, path: str | None) -> Tenants:
        """Load the tenants from a key file.

        Args:
            path: Path of the file; `~` is expanded. None: requests need no key.

        Returns:
            The tenants. The file is read again while the server runs.

        Raises:
            ValueError: The file cannot be read, or its content is invalid. The message has no value from the file.
        """
        if path is None:
            return cls()
        try:
            return cls(path=Path(path).expanduser())
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            raise ValueError(f"the API key file {path} cannot be used: {_reason(error)}") from error

    def _read(self, path: Path) -> None:
        """Read the keys and limits from the key file, unless its text is that of the last time."""
        text = path.read_bytes()
        if text != self._text:
            file = _read_keys(text)
            self._by_digest, self._limits = {key.sha256: key for key in file.keys}, file.limits
            self._text = text

    def _reload(self) -> None:
        """Read the file again if `RELOAD_S` seconds have passed."""
        if self._path is None or time.monotonic() - self._read_at < RELOAD_S:
            return
        self._read_at = time.monotonic()
        try:
            self._read(self._path)
        except FileNotFoundError:
            logger.error("API key file is missing, rejecting all keys: path=%s", self._path)
            self._by_digest, self._text = {}, None
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            logger.error(
                "API key file is invalid, using the previous keys: path=%s error=%s", self._path, _reason(error)
            )

    def tenant(self, api_key: str | None, header: str | None) -> Tenant:
        """Return the tenant (client) of a request. The key file is read again first, if the last time is over 5 s ago.

        Args:
            api_key: API key of the request. None: the request has none.
            header: Value of the header `x-turnstile-tenant`. It is used only if no keys are configured. None or empty:
                the tenant is `anonymous`.

        Raises:
            ApiError: 401 if keys are configured and `api_key` is not one of them. 400 if no keys are configured and
                `header` is not a valid name.
        """
        self._reload()
        if self._by_digest is None:
            try:
                return Tenant(name=header or ANONYMOUS, administrator=True)
            except ValidationError as error:
                message = f"`{TENANT_HEADER}` takes up to 64 letters, digits, dots, underscores and hyphens"
                raise ApiError(400, message, param=TENANT_HEADER, code="invalid_value") from error
        # The lookup compares digests, so its duration reveals nothing about the keys. Headers are decoded as Latin-1:
        # encoding restores the bytes that were sent.
        entry = self._by_digest.get(hashlib.sha256(api_key.encode("latin-1")).hexdigest()) if api_key else None
        if entry is None:
            missing = "send an API key: `Authorization: Bearer ...` or `x-api-key: ...`"
            what = missing if api_key is None else "the API key is not valid"
            raise ApiError(401, what, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        limits = self._limits.get(entry.tenant, TenantLimits())
        return Tenant(name=entry.tenant, administrator=entry.administrator, limits=limits)


_BEARER = HTTPBearer(auto_error=False, description="Needed if the server has an API key file.")


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


# Tenant of the request. A path operation with a parameter of this type requires an API key, if keys are configured.
Caller = Annotated[Tenant, Depends(_authenticated)]
# Tenant of the request, or None without a valid API key. It is for path operations that show less without a key.
Visitor = Annotated[Tenant | None, Depends(_authenticated_maybe)]
