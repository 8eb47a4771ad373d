"""The wheel, as somebody installs it who has no checkout: the grammar engine alone, then everything that serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import httpx
import psutil
import pytest

from deployments.shipped import REPOSITORY
from tests.documents import blocks
from tests.redis_server import free_port

START_S = 400
HEAVY = ("ray", "torch", "transformers", "fastapi", "httpx")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def run(*command: object, cwd: Path | None = None, code: int = 0) -> str:
    """What a command prints, both streams; it must end with `code`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Installation:
    """An environment of its own, and an empty folder to work in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.wheel = wheel
        venv.create(folder / "environment", with_pip=True)
        self.bin = folder / "environment" / "bin"

    def install(self, extras: str = "") -> None:
        options = ("--quiet", "--disable-pip-version-check", "--constraint", REPOSITORY / "constraints.txt")
        run(self.bin / "python", "-m", "pip", "install", *options, f"{self.wheel}{extras}")

    def turnstile(self, *words: object, code: int = 0) -> str:
        return run(self.bin / "turnstile", *words, cwd=self.folder, code=code)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """As `make release` makes them: the wheel is built of the sdist and of compiled kernels."""
    folder, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, REPOSITORY)
    (sdist,) = folder.iterdir()
    run("tar", "-xzf", sdist, "--strip-components", 1, "-C", source)
    run(sys.executable, "-m", "grammar_workers.ship_kernels", cwd=source)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, source)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def installation(distributions: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    (wheel,) = (path for path in distributions if path.suffix == ".whl")
    installation = Installation(tmp_path_factory.mktemp("installed"), wheel)
    installation.install()
    (installation.folder / "person.json").write_text('{"type": "object", "properties": {"age": {"type": "integer"}}}')
    return installation


def test_both_distributions_are_as_pypi_wants_them(distributions: list[Path]) -> None:
    assert len(distributions) == 2
    run(sys.executable, "-m", "twine", "check", "--strict", *distributions)


def test_the_base_is_the_grammar_engine_alone(installation: Installation) -> None:
    program = f"import sys, grammar_workers; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(installation.bin / "python", "-c", program, cwd=installation.folder).strip() == "[]"
    installed = {line["name"].lower() for line in json.loads(run(installation.bin / "pip", "list", "--format", "json"))}
    assert installed.isdisjoint(HEAVY)


def test_only_the_wheel_has_kernels(distributions: list[Path]) -> None:
    wheel, sdist = sorted(distributions, key=lambda path: path.suffix != ".whl")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as sources:
        members = [member for member in archive.infolist() if "compiled_kernels" in member.filename]
        assert not any("compiled_kernels" in name for name in sources.getnames())
    kernels = [Path(member.filename) for member in members]
    assert len({path.parent for path in kernels}) == 1 and {path.suffix for path in kernels} == {"", ".nbc"}
    assert sum(member.compress_size for member in members) < 2e6
    assert wheel.name.endswith("-py3-none-any.whl")


def test_check_needs_nothing_more(installation: Installation) -> None:
    said = installation.turnstile("check", "person.json")
    assert "supported" in said and "compiling" not in said, "the wheel has the compiled kernels"
    (installation.folder / "wrong.json").write_text('{"pattern": "(a)\\\\1"}')
    assert "/pattern" in installation.turnstile("check", "wrong.json", code=1)


@pytest.mark.parametrize("command", [["serve"], ["generate", "Hi"], ["bench"], ["precompile", "person.json"]])
def test_other_commands_say_in_one_line_what_they_need(installation: Installation, command: list[str]) -> None:
    said = installation.turnstile(*command, code=2)
    assert "needs the extra `serve` " in said and said.endswith(
        f": pip install 'turnstile-llm[serve] @ {installation.wheel.as_uri()}'\n"
    )
    assert [line for line in said.splitlines() if not line.startswith("loading ")] == [said.splitlines()[-1]]


def test_with_the_extra_it_serves_from_an_empty_folder(installation: Installation) -> None:
    installation.install("[serve]")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(installation.bin / "turnstile"), "serve", "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (installation.folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=installation.folder, env=environment, stdout=log, stderr=log, process_group=0
        )
    try:
        deadline = time.monotonic() + START_S
        while "Try:" not in (said := (installation.folder / "log").read_text()):
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.5)
        assert "compiling Turnstile's kernels" not in said
        request = next(block.text for block in blocks("README.md", "bash") if block.text.startswith("curl"))
        body = request[request.index("{") : request.rindex("}") + 1]
        kind = {"Content-Type": "application/json"}
        answer = httpx.post(f"{url}/v1/chat/completions", content=body, headers=kind, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert json.loads(answer.json()["choices"][0]["message"]["content"]).keys() == {"name", "age", "city"}
        assert "yes" in installation.turnstile("generate", "Say it.", "--choice", "yes", "--url", url)
        assert "ready" in installation.turnstile("precompile", "person.json", "--url", url)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, (installation.folder / "log").read_text()
    finally:
        if process.poll() is None:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
