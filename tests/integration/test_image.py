"""What the image runs, in an environment made by the lines of k8s/Dockerfile: from the build to a response."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from deployments.haproxy.settings import HEALTH_PORT
from deployments.local.launcher import environment
from tests.integration.traffic import PERSON, check, structured
from tests.k8s.manifests import K8S
from tests.k8s.recipe import BuiltImage
from tests.redis_server import RedisServer, free_port

START_S = 300

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> BuiltImage:
    return BuiltImage(tmp_path_factory.mktemp("image"))


def test_there_is_one_copy_of_the_code_with_its_metadata(image: BuiltImage) -> None:
    copies = [path for path in image.workdir.parent.rglob("keys.py") if path.parent.name == "grammar_workers"]
    assert len(copies) == 1 and "site-packages" in copies[0].parts
    program = "from deployments.version import version; print(version())"
    assert image.run("python", "-c", program).strip()
    assert "usage: turnstile" in image.run("turnstile", "--help")
    program = "from importlib.metadata import entry_points; print(*entry_points(group='vllm.general_plugins'))"
    assert "deployments.vllm.plugin:register" in image.run("python", "-c", program)


def test_the_kernels_of_the_image_are_all_that_a_pod_needs(image: BuiltImage) -> None:
    program = """
from numba.core import event
from deployments.arguments import model_source
from grammar_workers import warm_up
from grammar_workers.vocabulary.vocabulary import load_vocabulary
with event.install_recorder("numba:compile") as compilations:
    warm_up(load_vocabulary(model_source("models/turnstile-tiny")))
print(len(compilations.buffer))
"""
    assert image.run("python", "-c", program) == "0\n"


def test_what_the_pods_run_serves(image: BuiltImage) -> None:
    """Ray as the operator starts it and the configuration as the operator applies it, on one node."""
    with RedisServer() as redis, ray_node(image) as dashboard:
        config: dict[str, Any] = yaml.safe_load((K8S / "overlays" / "cpu-demo" / "serve.yaml").read_text())
        port = config["http_options"]["port"] = free_port()
        arguments = config["applications"][0]["args"]
        files = image.placed(arguments["store"].partition("?")[2])
        arguments["store"] = f"{redis.url}?{files}"
        with httpx.Client(timeout=60, trust_env=False) as http:
            http.put(f"{dashboard}/api/serve/applications/", json=config).raise_for_status()
            wait_until_it_runs(http, dashboard)
            answer = http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=structured(PERSON, max_tokens=400))
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        assert check((choice["message"]["content"], choice["finish_reason"]), PERSON)
        assert redis.client().dbsize() > 0


def wait_until_it_runs(http: httpx.Client, dashboard: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        application = http.get(f"{dashboard}/api/serve/applications/").json()["applications"]["turnstile"]
        if application["status"] == "RUNNING":
            return
        assert application["status"] == "DEPLOYING", json.dumps(application, indent=1)
        assert time.monotonic() < deadline, json.dumps(application, indent=1)
        time.sleep(1)


@contextlib.contextmanager
def ray_node(image: BuiltImage) -> Iterator[str]:
    """A Ray head that offers what the pods of both groups do. Yields the address of its dashboard."""
    (service,) = yaml.safe_load_all((K8S / "base" / "rayservice.yaml").read_text())
    (container,) = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"]
    of_the_pods = {
        each["name"]: image.placed(each["value"]) for each in container["env"] if each["name"] != HEALTH_PORT
    }
    ports = {
        name: free_port()
        for name in ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    }
    # Ray puts sockets below its folder: their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ti", ignore_cleanup_errors=True) as folder:
        command = ["ray", "start", "--head", "--block", "--num-cpus=4", '--resources={"grammar": 1, "model": 1}']
        command += [f"--temp-dir={folder}", *(f"--{name}={port}" for name, port in ports.items())]
        variables = {**image.environment, **environment(Path(folder)), **of_the_pods}
        log = (Path(folder) / "log").open("wb")
        # Found on this process' PATH otherwise, not on the image's.
        command[0] = image.placed("/usr/local/bin/ray")
        process = subprocess.Popen(command, cwd=image.workdir, env=variables, stdout=log, stderr=log, process_group=0)
        try:
            dashboard = f"http://127.0.0.1:{ports['dashboard-port']}"
            deadline = time.monotonic() + START_S
            while not _answers(dashboard):
                said = (Path(folder) / "log").read_text()
                assert process.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.5)
            yield dashboard
        finally:
            everything = []
            with contextlib.suppress(psutil.NoSuchProcess):
                everything = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            # A HAProxy whose parent has ended is no child any more. Its configuration is in the folder.
            everything += [one for one in psutil.process_iter(["cmdline"]) if folder in str(one.info["cmdline"])]
            for one in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.kill()
            process.wait()
            log.close()


def _answers(dashboard: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{dashboard}/api/serve/applications/", timeout=5, trust_env=False).status_code == 200
    return False
