"""Serve's configuration of HAProxy, as text, made to hold against slow, many and broken clients."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import re
from pathlib import Path

from deployments.haproxy import replies
from deployments.haproxy.settings import HEALTH_CONNECTIONS, PIPES, Settings

FRONTEND = "frontend http_frontend"
NO_BACKEND = "backend default_backend"
STATISTICS = ("listen stats", "frontend prometheus")
"""Serve reads what it needs from HAProxy's socket, and these listen on all addresses."""

STOPPING, STOPPING_FILE = "stopping", "stopping.acl"
"""While the ACL file beside the configuration has this word in it, requests are refused."""
ADDRESSES = "addresses"
ONE_CLIENT = "ipmask(32,64)"
"""An address of IPv4, a network of IPv6, as a client is given them."""


_ROUTER = re.compile(r"^\s+server \S+ (\S+):(\d+) (?!.*\bbackup\b)", re.MULTILINE)


class UnknownConfiguration(Exception):
    """Serve has written something else than its versions that we know."""


@dataclasses.dataclass
class _Section:
    head: str
    lines: list[str]

    def replace(self, pattern: str, line: str) -> None:
        """Put a line in the place of those that begin with `pattern`."""
        self.drop(pattern)
        self.lines.insert(0, f"    {line}")

    def drop(self, pattern: str) -> None:
        self.lines = [line for line in self.lines if not re.match(rf"\s+{pattern}\b", line)]

    def begin_with(self, *lines: str) -> None:
        """Rules come into force in their order: before Serve's own."""
        self.lines[:0] = [f"    {line}" for line in lines]


def with_routers(configuration: str, kept: Path) -> str:
    """Return `configuration`, or the last one with routers, which the file `kept` remembers, while one of them is up.

    While Serve builds a changed application, and after it could not, it writes a configuration without routers,
    although all replicas of the application before serve on.
    """
    if _ROUTER.search(configuration):
        kept.write_text(configuration)
    elif re.search(r"^\s+use_backend", configuration, re.MULTILINE) and kept.exists() and _is_up(kept.read_text()):
        return kept.read_text()
    return configuration


def _is_up(configuration: str) -> bool:
    """Return True if one of the routers passes Serve's health check."""
    path = re.findall(r"option httpchk GET (\S+)", configuration)[-1]
    for host, port in _ROUTER.findall(configuration):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(host, int(port), timeout=1)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return True
    return False


def hardened(configuration: str, settings: Settings, folder: Path) -> str:
    """`configuration`, written by Serve, with deadlines, bounds and pages; raises `UnknownConfiguration`.

    `folder` is the one that the configuration lies in.
    """
    sections = _sections(configuration)
    by_head = {section.head: section for section in sections}
    missing = [head for head in ("global", "defaults", FRONTEND, NO_BACKEND) if head not in by_head]
    if missing:
        raise UnknownConfiguration(f"no section `{missing[0]}`: this version of Ray is not known to Turnstile")
    frontend = by_head[FRONTEND]
    by_head["global"].replace("maxconn", f"maxconn {settings.connections + HEALTH_CONNECTIONS}")
    by_head["global"].begin_with(f"maxpipes {PIPES}")
    _set_defaults(by_head["defaults"], settings)
    serves = any(line.strip().startswith("use_backend") for line in frontend.lines)
    by_head[NO_BACKEND].lines = ["    " + _return(replies.NO_SUCH_PATH if serves else replies.NOT_READY)]
    refusal = _return(replies.STOPPING, f"{{ str({STOPPING}) -f {folder / STOPPING_FILE} }}")
    for section in sections:
        _answer_without_routers(section)
    added = [_addresses(), *_health(frontend, settings, refusal)]
    frontend.begin_with(
        f"maxconn {settings.connections}",
        *_per_address(settings),
        *_hosts(frontend, settings),
        # A request whose body stops coming takes no place in a router, as far as the body fits into a buffer.
        f"http-request wait-for-body time {_ms(settings.body_s)}",
        refusal,
        "acl plain_text res.hdr(content-type) -m beg text/plain",
        *(_return(reply, f"{{ status {status} }} plain_text", "response") for status, reply in replies.OF_SERVE),
    )
    kept = [section for section in sections if section.head not in STATISTICS]
    return "".join(f"{section.head}\n" + "".join(f"{line}\n" for line in section.lines) for section in [*kept, *added])


def _sections(configuration: str) -> list[_Section]:
    """A section begins where a line does."""
    sections: list[_Section] = []
    for line in configuration.splitlines():
        if line[:1].strip() and not line.startswith("#"):
            sections.append(_Section(line.strip(), []))
        elif line.strip() and sections:
            sections[-1].lines.append(line)
    return sections


def _answer_without_routers(backend: _Section) -> None:
    """Answer 503 at once while no router of a backend is up.

    Serve sends such requests to a proxy of its own (`backup`), which holds them until there is a router. The backup
    stays in the configuration, because a pod without routers must pass its readiness probe to be able to answer.
    """
    servers = [line.split() for line in backend.lines if re.match(r"\s+server\b", line)]
    if not backend.head.startswith("backend ") or not any(words[-1] == "backup" for words in servers):
        return
    name = backend.head.split()[1]
    routers = [words[1] for words in servers if words[-1] != "backup"]
    backend.begin_with(
        *(f"acl router_up srv_is_up({name}/{router})" for router in routers),
        _return(replies.NO_ROUTER, "!router_up" if routers else ""),
    )


def _set_defaults(defaults: _Section, settings: Settings) -> None:
    defaults.drop("errorfile")
    defaults.replace("timeout http-request", f"timeout http-request {_ms(settings.header_s)}")
    defaults.replace("timeout client", f"timeout client {_ms(settings.client_s)}")
    # What connects ahead of its first request, and sends none, is let go in silence.
    defaults.begin_with("option http-ignore-probes", *(f"http-error {reply.arguments}" for reply in replies.OWN))


def _per_address(settings: Settings) -> list[str]:
    """Of an address that has too many, some connections hear why; twice as many are the end."""
    most = settings.connections_per_address
    if not most:
        return []
    trusted = " ".join(settings.trusted_proxies)
    return [
        *([f"acl trusted src {trusted}"] if trusted else []),
        f"tcp-request connection track-sc0 src,{ONE_CLIENT} table {ADDRESSES}" + (" unless trusted" if trusted else ""),
        f"tcp-request connection reject if {{ sc0_conn_cur gt {2 * most} }}",
        f"tcp-request connection set-var(sess.crowded) bool(true) if {{ sc0_conn_cur gt {most} }}",
        _return(replies.crowded(most), "{ var(sess.crowded) -m bool }"),
    ]


def _hosts(frontend: _Section, settings: Settings) -> list[str]:
    """Return the rules that reject foreign host names on a loopback address (DNS rebinding)."""
    (address,) = (line.split()[1] for line in frontend.lines if re.match(r"\s+bind\b", line))
    if "*" in settings.hosts or not re.match(r"(127\.|localhost:|\[?::1\b)", address):
        return []
    names = " ".join(("localhost", "[::1]", *settings.hosts))
    return [
        f"acl known_host req.hdr(host),host_only -m str -i {names}",
        "acl known_host req.hdr(host),host_only -m end -i .localhost",
        r"acl known_host req.hdr(host),host_only -m reg ^127(\.[0-9]{1,3}){3}$",
        _return(replies.WRONG_HOST, "{ req.hdr(host) -m found } !known_host"),
    ]


def _addresses() -> _Section:
    return _Section(f"backend {ADDRESSES}", ["    stick-table type ipv6 size 100k expire 1m store conn_cur"])


def _health(frontend: _Section, settings: Settings, refusal: str) -> list[_Section]:
    """Answers `/health` and Serve's own check as `frontend` does, on a port that clients do not fill."""
    if settings.health_port is None:
        return []
    (bind,) = (line for line in frontend.lines if re.match(r"\s+bind\b", line))
    port = re.sub(r":\d+\s*$", f":{settings.health_port}", bind)
    health = _Section("frontend health", [port, *(line for line in frontend.lines if line != bind)])
    elsewhere = _return(replies.NO_SUCH_PATH, "!{ path /health /-/healthz }")
    health.begin_with(f"maxconn {HEALTH_CONNECTIONS}", refusal, elsewhere)
    return [health]


def _return(reply: replies.Reply, condition: str = "", direction: str = "request") -> str:
    return f"http-{direction} return {reply.arguments}" + (f" if {condition}" if condition else "")


def _ms(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"
