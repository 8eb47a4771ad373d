"""Limits of a tenant's requests, in every router replica: a token bucket, and a count of the requests under way."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated

from cachetools import LRUCache
from fastapi import Depends, Request

from deployments.arguments import RateLimit
from deployments.http.errors import ApiError
from deployments.http.tenants import Caller, Tenant

MAX_BUCKETS = 10_000
"""Tenants remembered. Where no API keys are configured their names are the clients' choice."""


@contextlib.contextmanager
def counted(counts: Counter[str], tenant: str) -> Iterator[None]:
    """Count a tenant in while the block lasts; who is not counted is not in `counts`."""
    counts[tenant] += 1
    try:
        yield
    finally:
        counts[tenant] -= 1
        if not counts[tenant]:
            del counts[tenant]


class RateLimits:
    """The buckets and counts of all tenants in one router replica.

    Args:
        limit: Limit of tenants without one of their own; each router replica enforces it as it is. None: no limit.
        routers: Number of router replicas, among which a tenant's own limits are divided.
        clock: Returns seconds.
    """

    def __init__(self, limit: RateLimit | None, routers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._routers = routers
        self._clock = clock
        self._under_way: Counter[str] = Counter()
        self._full_at: LRUCache[str, float] = LRUCache(MAX_BUCKETS)  # when a bucket is full again

    def take(self, tenant: Tenant) -> None:
        """Count one request. Raises `ApiError` 429, which names the limit and when to come back, for one too many."""
        limit, share = self._rate(tenant)
        if limit is None or share is None:
            return
        name, now = tenant.name, self._clock()
        interval = 60 / share.requests_per_minute
        full_at = max(self._full_at.get(name, now), now) + interval
        wait = full_at - now - interval * share.burst
        # Tolerates rounding: a request sent exactly when the header said so is served.
        if wait > interval * 1e-6:
            self._full_at[name] = full_at - interval
            after = math.ceil(wait)
            raise ApiError(
                429,
                f"rate limit of the tenant `{name}`: its burst of {limit.burst} requests is used up, and it may send "
                f"{limit.requests_per_minute:g} per minute{self._shared(limit, share)}; send the next one in {after} s",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(after)},
            )
        self._full_at[name] = full_at

    def charge(self, tenant: Tenant, requests: int) -> None:
        """Count requests that came with one that was let through: those after them wait the longer."""
        _, share = self._rate(tenant)
        if share is not None:
            now = self._clock()
            full_at = max(self._full_at.get(tenant.name, now), now)
            self._full_at[tenant.name] = full_at + requests * 60 / share.requests_per_minute

    @contextlib.contextmanager
    def under_way(self, tenant: Tenant) -> Iterator[None]:
        """Count a request while it is answered. Raises `ApiError` 429 if the tenant has too many."""
        most = tenant.limits.concurrent_requests
        if most is not None and self._under_way[tenant.name] >= max(1, most // self._routers):
            raise ApiError(
                429,
                f"limit of the tenant `{tenant.name}`: {most} concurrent requests are under way; send the next "
                "one when one of them has ended",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        with counted(self._under_way, tenant.name):
            yield

    def _shared(self, limit: RateLimit, share: RateLimit) -> str:
        """Return the part of the limit that this router enforces, in words; empty where it enforces all."""
        each = f" (each of {self._routers} routers: {share.burst}, and {share.requests_per_minute:g} per minute)"
        return "" if share == limit else each

    def _rate(self, tenant: Tenant) -> tuple[RateLimit | None, RateLimit | None]:
        """The tenant's rate limit, and the share of it that this replica enforces."""
        own = tenant.limits.rate_limit
        if own is None:
            return self._limit, self._limit
        rate, burst = own.requests_per_minute / self._routers, math.ceil(own.burst / self._routers)
        return own, RateLimit(requests_per_minute=rate, burst=burst)


async def _limited(request: Request, tenant: Caller) -> AsyncIterator[Tenant]:
    rate_limits: RateLimits = request.app.state.rate_limits
    with rate_limits.under_way(tenant):  # until the response has been sent, streams included
        rate_limits.take(tenant)
        yield tenant


LimitedCaller = Annotated[Tenant, Depends(_limited)]
"""As `Caller`, for paths that start work: each request counts."""
