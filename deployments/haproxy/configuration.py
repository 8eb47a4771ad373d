"""Hardening of Ray Serve's HAProxy configuration against slow clients, misbehaving clients and too many connections.

A configuration is a text of sections. A section begins with an unindented line, such as `frontend NAME`. The functions
replace and insert lines in Ray Serve's sections, and add sections.
"""

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
# Sections that are removed. They listen on all addresses, and Serve reads its statistics from HAProxy's socket.
STATISTICS = ("listen stats", "frontend prometheus")

# Requests are rejected while the file `STOPPING_FILE`, in the folder of the configuration, has the word `STOPPING`.
STOPPING, STOPPING_FILE = "stopping", "stopping.acl"
# Name of the table that counts the open connections of each client address.
ADDRESSES = "addresses"
# Mask of the addresses that count as one client: an IPv4 address, or an IPv6 network of 64 bits.
ONE_CLIENT = "ipmask(32,64)"


_ROUTER = re.compile(r"^\s+server \S+ (\S+):(\d+) (?!.*\bbackup\b)", re.MULTILINE)


class UnknownConfiguration(Exception):
    """A HAProxy configuration of Ray Serve lacks a required section, because the version of Ray is not supported."""


@dataclasses.dataclass
class _Section:
    head: str
    lines: list[str]

    def replace(self, pattern: str, line: str) -> None:
        """Replace the lines that begin with `pattern` by `line`."""
        self.drop(pattern)
        self.lines.insert(0, f"    {line}")

    def drop(self, pattern: str) -> None:
        self.lines = [line for line in self.lines if not re.match(rf"\s+{pattern}\b", line)]

    def begin_with(self, *lines: str) -> None:
        """Insert rules before those of Serve. HAProxy applies rules in their order."""
        self.lines[:0] = [f"    {line}" for line in lines]


def with_routers(configuration: str, kept: Path) -> str:
    """Return the configuration with which HAProxy must start: the new one, or the last one that has routers.

    Ray Serve writes a configuration without routers while it builds a changed application, and after a failed build.
    The routers of the previous application still serve at that time. Therefore, if the new configuration has an
    application but no router, the last configuration with routers is returned, provided that one of its routers passes
    the health check. In all other cases, `configuration` is returned.

    Args:
        configuration: Text of the configuration that Serve has written.
        kept: File with the last configuration that has routers. The file may be missing. If `configuration` has
            routers, the function writes it to this file.
    """
    if _ROUTER.search(configuration):
        kept.write_text(configuration)
    elif re.search(r"^\s+use_backend", configuration, re.MULTILINE) and kept.exists() and _is_up(kept.read_text()):
        return kept.read_text()
    return configuration


def _is_up(configuration: str) -> bool:
    """Return whether one of the routers passes Serve's health check."""
    path = re.findall(r"option httpchk GET (\S+)", configuration)[-1]
    for host, port in _ROUTER.findall(configuration):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(host, int(port), timeout=1)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return True
    return False


def hardened(configuration: str, settings: Settings, folder: Path) -> str:
    """Return Ray Serve's HAProxy configuration with additional deadlines, connection limits and error responses.

    Args:
        configuration: Text of the configuration that Serve has written.
        settings: Deadlines and limits of HAProxy.
        folder: Folder of the configuration file. It must have the file `stopping.acl` (`STOPPING_FILE`) when HAProxy
            starts. While the file contains the word `stopping`, HAProxy answers 503.

    Raises:
        UnknownConfiguration: A required section is missing, because the version of Ray is not supported.
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
        # HAProxy waits for the body, so that a stalled upload occupies no router (if the body fits into a buffer).
        f"http-request wait-for-body time {_ms(settings.body_s)}",
        refusal,
        "acl plain_text res.hdr(content-type) -m beg text/plain",
        *(_return(reply, f"{{ status {status} }} plain_text", "response") for status, reply in replies.OF_SERVE),
    )
    kept = [section for section in sections if section.head not in STATISTICS]
    return "".join(f"{section.head}\n" + "".join(f"{line}\n" for line in section.lines) for section in [*kept, *added])


def _sections(configuration: str) -> list[_Section]:
    """Split a configuration into its sections. A section begins at an unindented line."""
    sections: list[_Section] = []
    for line in configuration.splitlines():
        if line[:1].strip() and not line.startswith("#"):
            sections.append(_Section(line.strip(), []))
        elif sections:
            sections[-1].lines.append(line)
    return sections


def _answer_without_routers(backend: _Section) -> None:
    """Answer 503 at once while no router of a backend is up.

    Serve sends these requests to a proxy of its own (`backup`), which holds them until there is a router. The backup
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
    # A connection that was opened in advance and sends no request is closed without an error response.
    defaults.begin_with("option http-ignore-probes", *(f"http-error {reply.arguments}" for reply in replies.OWN))


def _per_address(settings: Settings) -> list[str]:
    """Return the rules for connections per address: answer 429 above the limit, reject above twice the limit."""
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
    """Return the frontend of the health port, if there is one. Connections of clients do not count against its limit.

    It answers `/health` and Serve's own check as `frontend` does.
    """
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
