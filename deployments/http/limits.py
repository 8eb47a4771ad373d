"""Limits on the requests of each tenant (client) in one router replica: a rate, and a number of open requests."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated

from cachetools import LRUCache
from fastapi import Depends, Request

from deployments.http.errors import ApiError
from deployments.http.tenants import Caller, RateLimit, Tenant

# Maximum number of tenants whose buckets are kept. Without API keys, clients choose the names of tenants freely.
MAX_BUCKETS = 10_000


@contextlib.contextmanager
def counted(counts: Counter[str], name: str) -> Iterator[None]:
    """Return a context that adds 1 to the count of a name (such as a tenant or a grammar key) while its block runs.

    Args:
        counts: Number of running blocks by name; changed in place. A name whose count falls to zero is removed.
        name: The name.
    """
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


class RateLimits:
    """Rate limits (token buckets) and limits on open requests for all tenants (clients), in one router replica.

    Args:
        limit: Rate limit of each tenant that has no rate limit of its own. This router enforces the whole limit. None:
            no limit.
        routers: Number of router replicas. This router enforces a tenant's own limits divided by this number.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, limit: RateLimit | None, routers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._routers = routers
        self._clock = clock
        self._under_way: Counter[str] = Counter()
        self._full_at: LRUCache[str, float] = LRUCache(MAX_BUCKETS)  # when a bucket is full again

    def take(self, tenant: Tenant) -> None:
        """Count one request of a tenant against its rate limit.

        Raises:
            ApiError: 429 if the tenant has used up its limit. The message and `Retry-After` give the time to wait.
        """
        limit, share = self._rate(tenant)
        if limit is None or share is None:
            return
        name, now = tenant.name, self._clock()
        interval = 60 / share.requests_per_minute
        full_at = max(self._full_at.get(name, now), now) + interval
        wait = full_at - now - interval * share.burst
        # The tolerance covers rounding: a request that is sent exactly after `Retry-After` is accepted.
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
        """Count additional requests of a tenant against its rate limit, without rejecting them.

        The tenant must then wait longer before its next request.

        Args:
            tenant: The tenant.
            requests: Number of additional requests. For example, an accepted request for 8 parallel outputs counts as 7
                additional requests.
        """
        _, share = self._rate(tenant)
        if share is not None:
            now = self._clock()
            full_at = max(self._full_at.get(tenant.name, now), now)
            self._full_at[tenant.name] = full_at + requests * 60 / share.requests_per_minute

    @contextlib.contextmanager
    def under_way(self, tenant: Tenant) -> Iterator[None]:
        """Return a context that counts one open request of a tenant while its block runs.

        Raises:
            ApiError: 429, before the block runs, if the tenant already has the maximum number of open requests in this
                router replica.
        """
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
        """Return the part of the limit that this router enforces, as text. Empty if it enforces the whole limit."""
        each = f" (each of {self._routers} routers: {share.burst}, and {share.requests_per_minute:g} per minute)"
        return "" if share == limit else each

    def _rate(self, tenant: Tenant) -> tuple[RateLimit | None, RateLimit | None]:
        """Return the tenant's rate limit, and the part of it that this router enforces."""
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


# Like `Caller`, for path operations that start work: each request counts against the tenant's limits.
LimitedCaller = Annotated[Tenant, Depends(_limited)]
