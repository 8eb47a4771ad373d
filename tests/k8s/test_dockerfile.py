"""The image's recipe, as far as it can be checked without building it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.k8s.manifests import K8S, REPOSITORY

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """(instruction, arguments), continuation lines joined, comments dropped."""
    text = re.sub(r"^\s*#.*\n", "", (K8S / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, arguments) for name, _, arguments in (line.partition(" ") for line in lines if line.strip())]


def arguments_of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def copied() -> list[str]:
    return [
        source
        for arguments in arguments_of("COPY")
        for source in [word for word in shlex.split(arguments) if not word.startswith("--")][:-1]
    ]


def ignored_except() -> set[str]:
    lines = (K8S / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_instructions_are_ones_that_docker_knows() -> None:
    assert {name for name, _ in instructions()} <= {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE"}


def test_python_is_the_one_the_project_is_pinned_for() -> None:
    arguments = dict(argument.split("=", 1) for argument in arguments_of("ARG"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={arguments['PYTHON_VERSION']}"
    assert arguments_of("FROM") == ["python:${PYTHON_VERSION}-slim-bookworm"]


def test_runs_as_the_user_that_the_pods_ask_for() -> None:
    assert arguments_of("USER") == ["1000:1000"]
    names = [name for name, _ in instructions()]
    last_user = len(names) - 1 - names[::-1].index("USER")
    assert all("install" not in arguments for name, arguments in instructions()[last_user:] if name == "RUN")
    (uid,) = re.findall(r"useradd --uid (\d+)", " ".join(arguments_of("RUN")))
    assert f"runAsUser: {uid}\n" in (K8S / "base" / "rayservice.yaml").read_text()


def test_copies_what_exists_and_what_the_context_contains() -> None:
    assert copied()
    for source in copied():
        assert (REPOSITORY / source).exists(), source
    assert set(copied()) == ignored_except()


def test_every_package_is_in_the_image() -> None:
    find = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert {pattern.removesuffix("*") for pattern in find["include"]} <= set(copied())


def test_every_installation_is_held_to_the_pinned_versions() -> None:
    installations = re.findall(r"pip install [^&]*", " ".join(arguments_of("RUN")))
    assert len(installations) == 2
    assert all("--constraint constraints.txt" in command for command in installations)


def test_what_is_installed_can_serve() -> None:
    """The program of the recipe that lists requirements, run as it stands."""
    (program,) = re.findall(r'python -c "(import tomllib;[^"]*)"', " ".join(arguments_of("RUN")))
    command = [sys.executable, "-c", program]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert listed == [*project["dependencies"], *project["optional-dependencies"]["serve"]]


def test_links_of_the_packages_lead_to_what_is_copied() -> None:
    links = [path for path in (REPOSITORY / "deployments").rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        assert link.resolve().relative_to(REPOSITORY).parts[0] in copied(), link


def test_kernels_cached_at_build_time_are_found_in_the_cluster() -> None:
    environment = " ".join(arguments_of("ENV"))
    for variable in ("NUMBA_CPU_NAME=${NUMBA_CPU}", 'NUMBA_CPU_FEATURES=""', "NUMBA_CACHE_DIR="):
        assert variable in environment
    warm_up = arguments_of("RUN")[-1]
    assert warm_up.index("touch --date=@") < warm_up.index("compileall") < warm_up.index("warm_up(")


def test_haproxy_is_started_by_the_program_that_the_pods_name() -> None:
    (path,) = re.findall(r"> (\S*turnstile-haproxy)", " ".join(arguments_of("RUN")))
    text = (K8S / "base" / "rayservice.yaml").read_text()
    assert re.search(rf"RAY_SERVE_HAPROXY_BINARY_PATH\n\s+value: {re.escape(path)}\n", text)
    assert "-m deployments.haproxy " in " ".join(arguments_of("RUN"))


def test_downloads_go_to_the_volume() -> None:
    (path,) = re.findall(r"HF_HOME=(\S+)", " ".join(arguments_of("ENV")))
    assert path.startswith("/var/cache/turnstile/")
    assert "mountPath: /var/cache/turnstile}" in (K8S / "base" / "rayservice.yaml").read_text()


@pytest.mark.long
def test_the_kernels_of_the_image_are_all_that_a_pod_needs(tmp_path: Path) -> None:
    """The last step of the build, run as it stands in a copy of what it works on; then a pod's first process.

    The steps before it install packages and add a user: what they name is checked above, they themselves are not run.
    """
    for folder in ("grammar_workers", "gpu_workers", "deployments", "models"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = dict(argument.split("=", 1) for argument in arguments_of("ARG"))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CPU_NAME": settings["NUMBA_CPU"],
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
        "WARM_MODEL": settings["WARM_MODEL"],
    }
    subprocess.run(["sh", "-c", arguments_of("RUN")[-1]], cwd=tmp_path, env=environment, check=True)
    program = """
from numba.core import event
from grammar_workers import warm_up
from grammar_workers.vocabulary.vocabulary import load_vocabulary
with event.install_recorder("numba:compile") as compilations:
    warm_up(load_vocabulary("models/turnstile-tiny"))
print(len(compilations.buffer))
"""
    command = [sys.executable, "-c", program]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    assert output == "0\n"
