"""Token buckets, and what the paths do with them."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deployments.arguments import RateLimit
from deployments.http import limits
from deployments.http.errors import ApiError
from deployments.http.limits import RateLimits
from deployments.http.tenants import TENANT_HEADER, Tenant, TenantLimits, Tenants
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def taken(rate_limits: RateLimits, tenant: str = "a") -> int:
    """Seconds to wait; 0: served."""
    try:
        rate_limits.take(Tenant(name=tenant))
    except ApiError as error:
        assert error.status == 429 and error.detail.type == "rate_limit_error" and tenant in error.detail.message
        return int((error.headers or {})["Retry-After"])
    return 0


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    rate_limits = RateLimits(RateLimit(requests_per_minute=30, burst=3), clock=clock)
    assert [taken(rate_limits) for _ in range(5)] == [0, 0, 0, 2, 2]
    assert taken(rate_limits, "b") == 0
    clock.now += 2
    assert [taken(rate_limits) for _ in range(2)] == [0, 2]
    clock.now += 1000
    assert [taken(rate_limits) for _ in range(4)] == [0, 0, 0, 2]


def test_what_comes_with_a_request_is_paid_for_later() -> None:
    clock = Clock()
    rate_limits = RateLimits(RateLimit(requests_per_minute=30, burst=3), clock=clock)
    assert taken(rate_limits) == 0
    rate_limits.charge(Tenant(name="a"), 7)  # a request of eight particles: eight requests, more than a burst
    assert taken(rate_limits) == 12
    clock.now += 12
    assert [taken(rate_limits) for _ in range(2)] == [0, 2]
    RateLimits(None).charge(Tenant(name="a"), 7)


@given(st.floats(0.1, 1000), st.integers(1, 5), st.lists(st.floats(0, 10), min_size=1, max_size=60))
def test_the_rate_is_never_exceeded_and_waiting_helps(rate: float, burst: int, pauses: list[float]) -> None:
    clock = Clock()
    rate_limits = RateLimits(RateLimit(requests_per_minute=rate, burst=burst), clock=clock)
    served = 0
    for pause in pauses:
        clock.now += pause
        wait = taken(rate_limits)
        served += wait == 0
        assert served <= burst + (clock.now - 1e6) * rate / 60 + 1e-3
    clock.now += wait
    assert taken(rate_limits) == 0 or wait == 0


def test_no_limit_and_few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(taken(RateLimits(None)) for _ in range(100))
    monkeypatch.setattr(limits, "MAX_BUCKETS", 2)
    rate_limits = RateLimits(RateLimit(requests_per_minute=1, burst=1), clock=Clock())
    assert [taken(rate_limits, tenant) for tenant in "abab"] == [0, 0, 60, 60]
    assert [taken(rate_limits, tenant) for tenant in "cab"] == [0, 0, 0]


@pytest.mark.anyio
async def test_each_tenant_has_its_own_limit(compiler: FakeCompiler, replica: FakeReplica) -> None:
    limit = RateLimit(requests_per_minute=1, burst=2)
    async with client_of(application(compiler, replica, rate_limit=limit)) as http:

        async def complete(tenant: str) -> httpx.Response:
            headers = {TENANT_HEADER: tenant}
            return await http.post("/v1/completions", json={"prompt": "x"}, headers=headers)

        assert [(await complete("a")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await complete("a")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await complete("b")).status_code == 200
        assert (await http.get("/v1/models", headers={TENANT_HEADER: "a"})).status_code == 200


@pytest.mark.anyio
async def test_each_particle_counts_as_a_request(compiler: FakeCompiler, replica: FakeReplica) -> None:
    limit = RateLimit(requests_per_minute=1, burst=4)
    async with client_of(application(compiler, replica, rate_limit=limit)) as http:
        weighed = {"structured_outputs": {"regex": "[0-9 ]+"}, "conditional_sampling": {"particles": 4}}
        assert (await http.post("/v1/completions", json={"prompt": "x", **weighed})).status_code == 200
        refused = await http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 60


@pytest.mark.anyio
async def test_a_tenants_limits_come_from_the_key_file(
    compiler: FakeCompiler, replica: FakeReplica, tmp_path: Path
) -> None:
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    keys = [{"tenant": name, "sha256": digest} for name, digest in digests.items()]
    (tmp_path / "keys").write_text(yaml.safe_dump({"keys": keys, "limits": {"one": {"concurrent_requests": 1}}}))
    tenants = Tenants.from_file(str(tmp_path / "keys"))
    async with client_of(application(compiler, replica, tenants=tenants)) as http:

        async def complete(key: str) -> httpx.Response:
            body = {"prompt": "x", "structured_outputs": {"regex": "[0-9 ]+"}}
            return await http.post("/v1/completions", json=body, headers={"x-api-key": key})

        compiler.release.clear()
        first = asyncio.create_task(complete("one"))
        await compiler.started.wait()
        refused = await complete("one")
        assert refused.status_code == 429 and "1 concurrent requests" in refused.json()["error"]["message"]
        other = asyncio.create_task(complete("two"))
        compiler.release.set()
        assert (await first).status_code == (await other).status_code == 200
        assert (await complete("one")).status_code == 200


def test_limits_of_an_unknown_tenant_fail_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(
        yaml.safe_dump({"keys": [{"tenant": "a", "sha256": "0" * 64}], "limits": {"b": {"new_grammars": 1}}})
    )
    with pytest.raises(ValueError, match="tenants without a key: b"):
        Tenants.from_file(str(tmp_path / "keys"))


@pytest.mark.anyio
async def test_a_long_prompt_is_refused(compiler: FakeCompiler, replica: FakeReplica) -> None:
    async with client_of(application(compiler, replica, max_prompt_bytes=100)) as http:
        for path, fields, param in [
            ("completions", {"prompt": "é" * 60}, "prompt"),
            ("chat/completions", {"messages": [{"role": "user", "content": "x" * 101}]}, "messages"),
            (
                "chat/completions",
                {
                    "messages": [{"role": "user", "content": "x"}],
                    "tools": [{"type": "function", "function": {"name": "f", "description": "x" * 101}}],
                },
                "messages",
            ),
        ]:
            response = await http.post(f"/v1/{path}", json=fields)
            detail = response.json()["error"]
            assert (response.status_code, detail["param"], detail["code"]) == (400, param, "context_length_exceeded")
        assert not replica.requests
        assert (await http.post("/v1/completions", json={"prompt": "é" * 40})).status_code == 200


def test_a_tenants_own_limits_are_divided_among_the_routers_and_named() -> None:
    clock = Clock()
    own = TenantLimits.model_validate(
        {"rate_limit": {"requests_per_minute": 120, "burst": 4}, "concurrent_requests": 5}
    )
    rate_limits = RateLimits(RateLimit(requests_per_minute=1, burst=1), routers=2, clock=clock)
    tenant = Tenant(name="search", limits=own)
    for _ in range(2):
        rate_limits.take(tenant)
    with pytest.raises(ApiError, match="`search`: its burst of 4 requests is used up, and it may send 120 per minute"):
        rate_limits.take(tenant)
    clock.now += 1
    rate_limits.take(tenant)
    assert taken(rate_limits) == 0 and taken(rate_limits) == 60, "others have the limit of the configuration"
    with rate_limits.under_way(tenant), rate_limits.under_way(tenant):
        with (
            pytest.raises(ApiError, match="5 concurrent requests are under way") as caught,
            rate_limits.under_way(tenant),
        ):
            pass
        assert caught.value.status == 429
        with rate_limits.under_way(Tenant(name="other")):
            pass
    with rate_limits.under_way(tenant):
        pass


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "headers", "next_status"),
    [
        (b'{"messages": [{"role": "user", "content": "Hi"}], "unknown": 1}', {}, 429),
        (b"{", {}, 200),
        (b"{}", {"content-encoding": "gzip"}, 200),
    ],
)
async def test_a_refused_request_counts_once_its_body_is_read(
    content: bytes, headers: dict[str, str], next_status: int
) -> None:
    limit = {"requests_per_minute": 1, "burst": 1}
    async with client_of(application(FakeCompiler(), FakeReplica(), rate_limit=limit)) as http:
        given_headers = {"content-type": "application/json", **headers}
        refused = await http.post("/v1/chat/completions", content=content, headers=given_headers)
        assert refused.status_code in (400, 415)
        response = await http.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == next_status
