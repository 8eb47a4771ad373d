"""What clients meet at a real HAProxy: deadlines, bounds, answers that are OpenAI's, and a stop."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deployments.haproxy import admin
from deployments.haproxy.configuration import hardened, with_routers
from deployments.haproxy.settings import CONNECTIONS, HEALTH_PORT, PER_ADDRESS, TRUSTED_PROXIES, Settings
from deployments.http.errors import ErrorBody
from tests.deployments.haproxy.processes import HAProxy, Router, haproxy, router, talk
from tests.redis_server import free_port

HEAD = b"POST /0 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
MOST = 4


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    """Of HTTP/2."""
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


POST_OF_HTTP_2 = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(4, 0, 0, b"")
    + frame(1, 4, 1, b"\x83\x86" + literal(b":path", b"/0") + literal(b":authority", b"localhost"))
)


@pytest.fixture(scope="module")
def routers() -> Iterator[int]:
    with router() as port:
        yield port


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, routers: int) -> Iterator[HAProxy]:
    """One that loses patience soon."""
    settings = Settings(connections=100, header_s=0.5, body_s=0.5, client_s=1.0)
    with haproxy(tmp_path_factory.mktemp("quick"), settings, routers) as process:
        yield process


@pytest.fixture
def narrow(tmp_path: Path, routers: int) -> Iterator[HAProxy]:
    """One that has room for few."""
    settings = Settings(
        health_port=free_port(),
        header_s=200,
        connections=4 * MOST,
        connections_per_address=MOST,
        trusted_proxies=("127.0.0.8/31", "10.0.0.0/8"),
    )
    with haproxy(tmp_path / "node", settings, routers) as process:
        yield process


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, routers: int) -> Iterator[HAProxy]:
    """One of this machine alone, which is called `named`."""
    with haproxy(tmp_path_factory.mktemp("own"), Settings(connections=100, hosts=("named",)), routers) as process:
        yield process


def error(answer: httpx.Response | bytes, status: int) -> Any:
    """The error of an answer, which must have OpenAI's body and no key more."""
    if isinstance(answer, bytes):
        head, _, text = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == b"%d" % status and b"content-type: application/json" in head.lower(), answer
        body = json.loads(text)
    else:
        assert answer.status_code == status and answer.headers["content-type"] == "application/json", answer.text
        body = answer.json()
    detail = ErrorBody.model_validate(body).model_dump()["error"]
    assert {name: detail[name] for name in ("message", "type", "param", "code")} == body["error"]
    return body["error"]


def get(port: int, path: str = "/0", source: str = "127.0.0.1") -> httpx.Response:
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(transport=transport, trust_env=False, timeout=200) as client:
        return client.get(f"http://127.0.0.1:{port}{path}")


def hold(port: int, source: str, stack: ExitStack) -> None:
    """A connection on which half a header was sent, unless HAProxy let go of it sooner, as it may beyond a bound."""
    held = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
    stack.enter_context(held)
    with suppress(ConnectionError):
        held.sendall(b"GET /0 HTTP/1.1\r\nhos")


def get_when_held(
    port: int, source: str, stack: ExitStack, settled: Callable[[httpx.Response | None], bool]
) -> httpx.Response | None:
    """An answer, None where the connection was closed; holds more until `settled`, for HAProxy counts a bit later."""
    for _ in range(20):
        try:
            answer = get(port, source=source)
        except httpx.TransportError:
            answer = None
        if settled(answer):
            break
        hold(port, source, stack)
    return answer


def test_deadlines(quick: HAProxy) -> None:
    """Slow clients are let go: their connections close; those that wait for an answer are not slow."""
    cases: dict[str, tuple[tuple[bytes, ...], bytes]] = {
        "nothing": ((), b""),
        "half a header": ((b"POST /0 HTTP/1.1\r\nhos",), b""),
        "a header bit by bit": ((b"POST /0 HTTP/1.1\r\nhos",), b"a"),
        "half a body": ((HEAD % 10, b"abc"), b""),
        "a body bit by bit": ((HEAD % 100_000,), b"a"),
        "half of a long body": ((HEAD % 100_000, b"a" * 50_000), b""),
        "half of a header of HTTP/2": (
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\1\0\1\0\0\0\0\1aa",),
            b"",
        ),
        "a slow router": ((b"GET /2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",), b""),
        "a slow stream": ((b"GET /stream/2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",), b""),
    }
    with ThreadPoolExecutor(len(cases)) as threads:
        sent = [
            threads.submit(talk, quick.port, *parts, again=again, pause_s=0.1 if again else 0)
            for parts, again in cases.values()
        ]
        answers = dict(zip(cases, (one.result() for one in sent), strict=True))
    for name in ("a slow router", "a slow stream"):
        assert answers[name].endswith(b"0123456789")
    assert answers["nothing"] == b""
    assert error(answers["half a body"], 408)["type"] == "invalid_request_error"
    error(answers["half of a long body"], 400)


def test_each_deadline_is_the_one_of_the_settings(tmp_path: Path) -> None:
    text = HAProxy(tmp_path / "node", [], Settings()).written_by_serve()
    lines = hardened(text, Settings(header_s=1.5, body_s=2.5, client_s=3.5), tmp_path).splitlines()
    for line in ("timeout http-request 1500ms", "http-request wait-for-body time 2500ms", "timeout client 3500ms"):
        assert f"    {line}" in lines


@pytest.mark.parametrize("part", [b"", frame(0, 0, 1, b"a"), frame(0, 0, 1, b""), frame(6, 0, 0, b"a ping..")])
def test_a_body_of_http_2_bit_by_bit(quick: HAProxy, part: bytes) -> None:
    """It has one deadline; the connection may go on with other requests."""
    came = b""
    with socket.create_connection(("127.0.0.1", quick.port), timeout=200) as connection:
        connection.sendall(POST_OF_HTTP_2)
        for _ in range(5000):
            time.sleep(0.02)
            connection.settimeout(0.001)
            with suppress(TimeoutError):
                came += connection.recv(1 << 16)
            if b"did not arrive in time" in came:
                break
            connection.sendall(part)
    assert b"did not arrive in time" in came


def test_an_address_with_too_many_connections(narrow: HAProxy) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            hold(narrow.port, "127.0.0.2", stack)
        refused = get_when_held(narrow.port, "127.0.0.2", stack, lambda answer: answer is None or answer.is_error)
        assert refused is not None
        assert error(refused, 429)["code"] == "too_many_connections" and refused.headers["retry-after"] == "1"
        for _ in range(MOST):
            hold(narrow.port, "127.0.0.2", stack)
        assert get_when_held(narrow.port, "127.0.0.2", stack, lambda answer: answer is None) is None
        assert get(narrow.port, source="127.0.0.3").status_code == 200
    for _ in range(1000):  # HAProxy hears of the ends a bit later
        with suppress(httpx.TransportError):
            if get(narrow.port, source="127.0.0.2").status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail("connections that were closed count")


def test_a_trusted_proxy_has_no_bound(narrow: HAProxy) -> None:
    with ExitStack() as stack:
        for _ in range(3 * MOST):
            hold(narrow.port, "127.0.0.9", stack)
        assert get(narrow.port, source="127.0.0.9").status_code == 200


def test_the_health_port_is_free_when_no_other_is(narrow: HAProxy) -> None:
    health = narrow.settings.health_port
    assert health is not None
    with ExitStack() as stack:
        for _ in range(5 * MOST):
            hold(narrow.port, "127.0.0.9", stack)
        with pytest.raises(httpx.TimeoutException):
            httpx.get(f"http://127.0.0.1:{narrow.port}/0", timeout=1, trust_env=False)
        assert get(health, "/health").status_code == 200
        assert get(health, "/-/healthz").text == "success"
        error(get(health, "/v1/models"), 404)


def test_a_stop(narrow: HAProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one moment on everything new is refused, also after a reload; what is under way is not."""
    monkeypatch.setenv(admin.SOCKET, str(narrow.folder.parent / "admin.sock"))
    monkeypatch.setattr(admin, "TIMEOUT_S", 200)
    Router.may_end.clear()
    health = narrow.settings.health_port
    assert health is not None and admin.open_requests() == 0
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(get, narrow.port, "/held")
        streaming = threads.submit(get, narrow.port, "/stream/held")
        while admin.open_requests() < 2:
            time.sleep(0.01)
        admin.refuse_requests()
        for answer in (get(narrow.port), get(health, "/health"), get(health, "/-/healthz")):
            assert error(answer, 503)["code"] == "shutting_down" and int(answer.headers["retry-after"]) > 0
        body = b"x" * 200_000
        assert b'"shutting_down"' in talk(narrow.port, HEAD % len(body) + body)
        narrow.routers = []
        narrow.start()
        assert error(get(narrow.port), 503)["code"] == "shutting_down"
        Router.may_end.set()
        assert (running.result().text, streaming.result().text) == ("0123456789", "0123456789")
    admin.close_ports()
    psutil.wait_procs([psutil.Process(process.pid) for process in narrow._processes], timeout=60)
    with pytest.raises(httpx.ConnectError):
        get(narrow.port)


def test_a_socket_that_nobody_listens_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node").mkdir()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / "node" / "admin.sock"))
    monkeypatch.setenv(admin.SOCKET, str(tmp_path / "admin.sock"))
    admin.refuse_requests()
    admin.close_ports()
    assert admin.open_requests() == 0
    monkeypatch.delenv(admin.SOCKET)
    assert admin.open_requests() == 0


def test_without_application_or_router(tmp_path: Path) -> None:
    with haproxy(tmp_path / "none", Settings(connections=100)) as none:
        answer = get(none.port, "/v1/chat/completions")
        assert error(answer, 503)["code"] == "not_ready" and int(answer.headers["retry-after"]) > 0
    nobody = free_port()
    with haproxy(tmp_path / "gone", Settings(connections=100), nobody) as gone:
        assert error(get(gone.port), 503)["code"] == "router_lost"


@pytest.mark.parametrize("many", [0, 2])
def test_no_request_is_held_while_no_router_is_up(tmp_path: Path, routers: int, many: int) -> None:
    """Serve's own proxy would hold it. The node goes on passing its probe: else nobody would be left to answer."""
    gone = [free_port() for _ in range(many)]
    with haproxy(tmp_path / "node", Settings(connections=100), *gone, fallback=routers) as node:
        for _ in range(400):  # until the checks have found the routers to be gone
            if (answer := get(node.port)).status_code == 503:
                break
            time.sleep(0.5)
        assert error(answer, 503)["code"] == "router_lost" and answer.headers["retry-after"] == "1"
        assert get(node.port, "/-/healthz").status_code == 200


def test_a_backup_is_no_hindrance_while_a_router_is_up(tmp_path: Path, routers: int) -> None:
    with haproxy(tmp_path / "node", Settings(connections=100), routers, fallback=free_port()) as node:
        assert get(node.port).text == "0123456789"


def test_a_router_that_dies(narrow: HAProxy) -> None:
    assert error(get(narrow.port, "/die"), 502)["code"] == "router_lost"


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [(404, 503, "not_ready"), (408, 408, None), (429, 429, "server_full"), (500, 500, "internal_error")]
    + [(503, 503, "router_lost"), (400, 400, None), (403, 403, None), (426, 426, None)],
)
def test_what_serve_says_in_plain_text(own: HAProxy, said: int, status: int, code: str | None) -> None:
    """Its proxy, where it knows no application, and the routers, where they are full."""
    assert error(get(own.port, f"/plain/{said}"), status)["code"] == code
    assert get(own.port, "/plain/200").text == "0123456789"


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1", 200), ("127.8.9.1:80", 200), ("[::1]:8000", 200)]
    + [("a.localhost", 200), ("named:8000", 200), (None, 200)]
    + [
        (name, 403)
        for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "1.2.3.4", "x")
    ],
)
def test_a_page_elsewhere_is_not_led_to_a_server_of_this_machine(own: HAProxy, host: str | None, status: int) -> None:
    """By a name of its own that resolves to 127.0.0.1, with which the browser takes the answers for the page's."""
    version, named = (b"1.0", b"") if host is None else (b"1.1", f"host: {host}\r\n".encode())
    answer = talk(own.port, b"GET /0 HTTP/" + version + b"\r\nconnection: close\r\n" + named + b"\r\n")
    assert int(answer.split()[1]) == status
    assert status == 200 or error(answer, 403)["code"] == "host_not_allowed"


@pytest.mark.parametrize(("address", "hosts"), [("0.0.0.0", ()), ("10.1.2.3", ()), ("127.0.0.1", ("*",))])
def test_others_may_be_called_anything(tmp_path: Path, address: str, hosts: tuple[str, ...]) -> None:
    text = HAProxy(tmp_path / "node", [], Settings()).written_by_serve()
    assert "known_host" in hardened(text, Settings(), tmp_path)
    assert "known_host" not in hardened(text.replace("127.0.0.1", address), Settings(hosts=hosts), tmp_path)


def test_as_serve_starts_it(tmp_path: Path, routers: int) -> None:
    """Only the two ports listen."""
    process = HAProxy(tmp_path / "node", [routers], Settings())
    health = free_port()
    try:
        process.start_program(
            **{HEALTH_PORT: str(health), PER_ADDRESS: "2", TRUSTED_PROXIES: "10.1.2.3, fd00::/8", CONNECTIONS: "100"},
            RAY_SERVE_HAPROXY_BINARY_PATH="/this/program/itself",
        )
        assert get(process.port).status_code == get(health, "/health").status_code == 200
        listening = psutil.Process(process._processes[0].pid).net_connections("tcp")
        found = {(each.laddr.ip, each.laddr.port) for each in listening if each.status == psutil.CONN_LISTEN}
        assert found == {("127.0.0.1", process.port), ("127.0.0.1", health)}
    finally:
        process.end()


def test_routers_stay_while_serve_builds_a_changed_application(tmp_path: Path) -> None:
    """Serve writes none then; every request got 503 although all replicas were there. What is down does not stay."""
    process = HAProxy(tmp_path, [], Settings())
    with router() as port, router() as fallback:
        process.fallback = fallback
        kept = tmp_path / "routers"
        none = process.written_by_serve()
        assert with_routers(none, kept) == none
        process.routers = [port]
        served = process.written_by_serve()
        assert with_routers(served, kept) == served
        assert with_routers(none, kept) == served
        process.routers, process.fallback = [], None
        deleted = process.written_by_serve()
        assert with_routers(deleted, kept) == deleted
    assert with_routers(none, kept) == none


def test_the_program_keeps_routers(tmp_path: Path) -> None:
    with router() as port, router() as fallback:
        ours = free_port()
        for routers in ([port], []):
            process = HAProxy(tmp_path, routers, Settings(), ours, fallback)
            try:
                process.start_program()
                assert get(process.port).text == "0123456789"
            finally:
                process.end()
