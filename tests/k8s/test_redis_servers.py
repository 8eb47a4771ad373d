"""The start commands of the Redis servers, run as they stand with a real server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.k8s.manifests import K8S, Manifest, build, of_kind
from tests.redis_server import free_port, redis_server_binary

PASSWORD = "0123456789abcdef"


def redis_pods(manifests: list[Manifest]) -> list[tuple[dict[str, str], Manifest]]:
    """(data of the ConfigMap, container) of every Redis."""
    configs = {config["metadata"]["name"]: config["data"] for config in of_kind(manifests, "ConfigMap")}
    return [
        (configs[workload["metadata"]["name"]], workload["spec"]["template"]["spec"]["containers"][0])
        for workload in [*of_kind(manifests, "Deployment"), *of_kind(manifests, "StatefulSet")]
    ]


@pytest.fixture
def servers(kustomize: None, tmp_path: Path) -> Iterator[list[tuple[str, int]]]:
    """(expected eviction policy, port) of both servers, each started by its manifest's command."""
    processes, started = [], []
    binary = redis_server_binary()
    for number, (config, container) in enumerate(redis_pods(build(K8S / "overlays" / "high-availability"))):
        port, folder = free_port(), tmp_path / str(number)
        folder.mkdir()
        text = config["redis.conf"].replace("port 6379", f"port {port}").replace("dir /data", f"dir {folder}")
        (folder / "redis.conf").write_text(text)
        arguments = [argument.replace("/etc/redis", str(folder)) for argument in container["args"]]
        environment = {"PATH": f"{Path(binary).parent}:{os.environ['PATH']}", "REDISCLI_AUTH": PASSWORD}
        processes.append(
            subprocess.Popen(
                [*container["command"], *arguments], env=environment, cwd=folder, stdout=subprocess.DEVNULL
            )
        )
        (policy,) = [line.split()[1] for line in text.splitlines() if line.startswith("maxmemory-policy")]
        started.append((policy, port))
    yield started
    for process in processes:
        process.terminate()
        assert process.wait(timeout=120) == 0, "redis-server was not the process that got the signal"


def connect(port: int, password: str | None) -> redis.Redis:
    return redis.Redis(port=port, password=password, retry=Retry(NoBackoff(), 0))


def answering(port: int) -> redis.Redis:
    client = connect(port, PASSWORD)
    deadline = time.monotonic() + 120
    while True:
        try:
            client.ping()
            return client
        except redis.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_servers_start_with_their_settings_and_want_the_password(servers: list[tuple[str, int]]) -> None:
    assert [policy for policy, _ in servers] == ["allkeys-lru", "noeviction"]
    for policy, port in servers:
        client = answering(port)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": policy}
        assert client.config_get("appendonly") == {"appendonly": "yes" if policy == "noeviction" else "no"}
        assert client.config_get("maxmemory") != {"maxmemory": "0"}
        with pytest.raises(redis.AuthenticationError):
            connect(port, password=None).ping()
