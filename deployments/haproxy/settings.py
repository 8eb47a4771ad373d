"""Limits and deadlines of HAProxy, read from environment variables.

Environment variables are used because HAProxy also starts on nodes that do not have the Serve config file.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import resource
from collections.abc import Mapping

HEALTH_PORT = "TURNSTILE_HEALTH_PORT"
PER_ADDRESS = "TURNSTILE_CONNECTIONS_PER_ADDRESS"
TRUSTED_PROXIES = "TURNSTILE_TRUSTED_PROXIES"
HOSTS = "TURNSTILE_HOSTS"
CONNECTIONS = "RAY_SERVE_HAPROXY_MAXCONN"
CLIENT_S = "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"

# Connections that are reserved for the health port.
HEALTH_CONNECTIONS = 64
# Pipes through which the kernel moves large bodies. By default, HAProxy reserves one for every fourth connection.
PIPES = 64
# Files that HAProxy opens besides two for each connection and each pipe: listeners, checks, inherited sockets.
OTHER_FILES = 200


@dataclasses.dataclass(frozen=True)
class Settings:
    """Limits and deadlines of HAProxy.

    Attributes:
        health_port: Port for health checks only. Its connections do not count toward `connections`. None: no such port.
        connections: Maximum number of open client connections.
        connections_per_address: Maximum number of open connections of one IPv4 address or IPv6 /64 network. 0: no
            limit.
        trusted_proxies: Addresses and networks (such as `10.0.0.0/8`) without the limit `connections_per_address`.
        hosts: Accepted values of the header `Host`, in addition to localhost. `*`: all values. Only used if HAProxy
            listens on a loopback address.
        client_s: Maximum number of seconds for which a client may send or read nothing while HAProxy waits for it.
        header_s: Maximum number of seconds until the header of a request has arrived.
        body_s: Maximum number of seconds until the body of a request has arrived. If the body is larger than HAProxy's
            buffer: until the buffer is full.
    """

    health_port: int | None = None
    connections: int = 16384
    connections_per_address: int = 1024
    trusted_proxies: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    client_s: float = 60.0
    header_s: float = 10.0
    body_s: float = 10.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Return the settings that environment variables contain.

        The variables are TURNSTILE_HEALTH_PORT, TURNSTILE_CONNECTIONS_PER_ADDRESS, TURNSTILE_TRUSTED_PROXIES,
        TURNSTILE_HOSTS, RAY_SERVE_HAPROXY_MAXCONN (`connections`) and RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S (`client_s`).
        `header_s` and `body_s` have no variable. `connections` is reduced if the limit of this process on open files
        allows fewer connections. An invalid value raises a `ValueError` that names the variable.

        Args:
            environment: Variables by name, such as `os.environ`. A missing or empty variable means the default.
        """
        port = _number(environment, HEALTH_PORT, 0, most=65535)
        return cls(
            health_port=port or None,
            connections=min(_number(environment, CONNECTIONS, cls.connections, least=1), _most_connections()),
            connections_per_address=_number(environment, PER_ADDRESS, cls.connections_per_address),
            client_s=_number(environment, CLIENT_S, int(cls.client_s), least=1),
            trusted_proxies=_networks(environment.get(TRUSTED_PROXIES, "")),
            hosts=_hosts(environment.get(HOSTS, "")),
        )


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = 1 << 20) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ValueError(f"{name} takes a number from {least} to {most}, not {text[:40]!r}")
    return int(text)


def _networks(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(part)) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise ValueError(f"{TRUSTED_PROXIES} takes addresses and networks: {error}") from error


def _hosts(text: str) -> tuple[str, ...]:
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if re.fullmatch(r"\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", name) is None:
            raise ValueError(f"{HOSTS} takes names and addresses without ports, or *, not {name[:40]!r}")
    return names


def _most_connections() -> int:
    """Return the number of connections that the limit of open files allows. HAProxy does not start with more."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 1 << 20
    return max(1, (files - OTHER_FILES) // 2 - PIPES - HEALTH_CONNECTIONS)
