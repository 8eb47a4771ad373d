"""How many requests a tenant may send: a token bucket for each, in every router replica."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated

from cachetools import LRUCache
from fastapi import Depends, Request

from deployments.arguments import RateLimit
from deployments.http.errors import ApiError
from deployments.http.tenants import Caller, Tenant

MAX_BUCKETS = 10_000
"""Tenants remembered. Where no API keys are configured their names are the clients' choice."""


class RateLimits:
    """The buckets. None: no limit. `clock` tells seconds."""

    def __init__(self, limit: RateLimit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._full_at: LRUCache[str, float] = LRUCache(MAX_BUCKETS)  # when a bucket is full again

    def take(self, tenant: str) -> None:
        """Count one request; raises `ApiError` 429, saying when to come back, where there are too many."""
        if self._limit is None:
            return
        now = self._clock()
        interval = 60 / self._limit.requests_per_minute
        full_at = max(self._full_at.get(tenant, now), now) + interval
        wait = full_at - now - interval * self._limit.burst
        # Tolerates rounding: a request sent exactly when the header said so is served.
        if wait > interval * 1e-6:
            self._full_at[tenant] = full_at - interval
            raise ApiError(
                429,
                f"the tenant `{tenant}` has sent more than {self._limit.requests_per_minute:g} requests per minute",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(math.ceil(wait))},
            )
        self._full_at[tenant] = full_at

    def charge(self, tenant: str, requests: int) -> None:
        """Count requests that came with one that was let through: those after them wait the longer."""
        if self._limit is not None:
            now = self._clock()
            full_at = max(self._full_at.get(tenant, now), now)
            self._full_at[tenant] = full_at + requests * 60 / self._limit.requests_per_minute


async def _limited(request: Request, tenant: Caller) -> Tenant:
    rate_limits: RateLimits = request.app.state.rate_limits
    rate_limits.take(tenant.name)
    return tenant


LimitedCaller = Annotated[Tenant, Depends(_limited)]
"""As `Caller`, for paths that start work: each request counts."""
