"""What an operator chooses about HAProxy, in environment variables: it starts on nodes that no config file reaches."""

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

HEALTH_CONNECTIONS = 64
"""Kept free for the health port when all others are taken."""
PIPES = 64
"""Through which the kernel moves large bodies; of itself HAProxy reserves one for every fourth connection."""
OTHER_FILES = 200
"""Files that HAProxy opens beside two for each connection and each pipe: listeners, checks, what it takes over."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What HAProxy is to hold against.

    `connections_per_address` is 0 for no bound, and does not count `trusted_proxies`, addresses and networks.
    `hosts`: what a server that listens on a loopback address may be called beside localhost; `*` for anything. The
    deadlines: `header_s` for a whole header, `body_s` for a whole body or one buffer of it, `client_s` for any sign of
    life from a client while it is its turn.
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
        """Raises `ValueError`, naming the variable."""
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
    """What the limit of open files has room for: HAProxy does not start with more."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 1 << 20
    return max(1, (files - OTHER_FILES) // 2 - PIPES - HEALTH_CONNECTIONS)
