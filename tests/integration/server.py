"""A real server for tests: the launcher in a process of its own, with everything it starts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil
import yaml

from deployments.shipped import REPOSITORY
from tests.redis_server import free_port

START_DEADLINE_S = 900
METRICS_DEADLINE_S = 120
LAUNCHER = "deployments.local.launcher"
# Ray collects the metrics of its processes every second, not every ten: tests wait for values.
_REPORTS = {"RAY_metrics_report_interval_ms": "1000"}


def still_runs(process: psutil.Process) -> bool:
    """Whether a process has not ended. What has, but whose end nobody has asked for yet, does not run any more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Server:
    """`python -m deployments.local.launcher` on free ports. Entering it waits until it is ready.

    `code`: a folder with another version of the packages, which is run in place of this one.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        *,
        deadline_s: float = START_DEADLINE_S,
        code: Path = REPOSITORY,
    ) -> None:
        config = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())
        config["applications"][0]["args"] |= arguments
        self.port = free_port()
        self.metrics_ports = [free_port()]
        self.url = f"http://127.0.0.1:{self.port}"
        # Ray puts sockets below its folder: their paths must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="ts"))
        self._log_path = self._folder / "log"
        self._config = self._folder / "config.yaml"
        self._config.write_text(yaml.safe_dump(config))
        self._deadline_s = deadline_s
        self._code = code
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to start; returns at once."""
        command = [sys.executable, "-m", LAUNCHER, str(self._config), "--port", str(self.port)]
        command += ["--metrics-port", str(self.metrics_ports[0]), "--deadline", str(self._deadline_s)]
        paths = os.pathsep.join(filter(None, (str(self._code), os.environ.get("PYTHONPATH"))))
        environment = {**_REPORTS, **os.environ, "RAY_TMPDIR": str(self._folder), "PYTHONPATH": paths}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self._code, process_group=0
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + self._deadline_s
        while "Try:" not in self.log:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            assert time.monotonic() < deadline, f"the server is not ready:\n{self.log}"
            time.sleep(0.2)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def health_port(self) -> int:
        """Where probes ask; known when it is ready."""
        found = re.search(r"for probes: http://[^:]+:(\d+)/health", self.log)
        assert found is not None
        return int(found[1])

    def interrupt(self) -> tuple[int, list[psutil.Process]]:
        """What Ctrl-C does. Returns the exit code and the processes that are left over."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=120)
        return code, [process for process in started if still_runs(process)]

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The processes of a deployment's replicas."""
        return self.processes(f"ServeReplica:turnstile:{deployment}")

    def processes(self, words: str) -> list[psutil.Process]:
        """The processes of this server whose command line has `words` in it."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if words in " ".join(process.cmdline()) and still_runs(process):
                    found.append(process)
        return found

    def metric(self, name: str, **labels: str) -> list[float]:
        """A metric's values in the processes that have the labels, as far as Ray has collected them."""
        return list(self.series(name, **labels).values())

    def series(self, name: str, **labels: str) -> dict[str, float]:
        """As `metric`, by the whole line before the value: all its labels."""
        found = {}
        for port in self.metrics_ports:
            with contextlib.suppress(httpx.TransportError):  # the port of a node that is gone, or busy
                text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False).text
                for line in text.splitlines():
                    series, _, value = line.rpartition(" ")
                    if re.match(rf"(ray_)?{name}(_total)?\{{", series) and all(
                        f'{label}="{wanted}"' in series for label, wanted in labels.items()
                    ):
                        found[series] = float(value)
        return found

    def increase(self, before: dict[str, float], name: str, **labels: str) -> float:
        """How much the series of a metric have grown altogether since they were `before`; some may have ended."""
        return sum(value - before.get(series, 0.0) for series, value in self.series(name, **labels).items())

    def shows_metric(self, name: str, *, within_s: float = METRICS_DEADLINE_S, **labels: str) -> bool:
        """Whether some value is no longer zero in time. Ray collects every few seconds, from all processes alike."""
        deadline = time.monotonic() + within_s
        while not (shown := any(self.metric(name, **labels))) and time.monotonic() < deadline:
            time.sleep(0.2)
        return shown

    def wait_metric(self, name: str, **labels: str) -> None:
        """Return when some value is no longer zero."""
        assert self.shows_metric(name, **labels), f"{name} stays at 0"

    def __enter__(self) -> Server:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop whatever runs and remove the folder."""
        if self.process.poll() is None:
            started = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)
            for process in (self.process, *started):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
