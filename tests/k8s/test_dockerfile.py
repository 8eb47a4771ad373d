"""The image's recipe, as far as it can be checked without building it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib

from tests.k8s.manifests import K8S, REPOSITORY
from tests.k8s.recipe import arguments_of, instructions


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
    assert len(installations) == 3
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


def test_the_image_has_kernels_for_all_machines_of_the_cluster() -> None:
    (installation,) = [command for command in arguments_of("RUN") if "./source" in command]
    assert installation.index("-m grammar_workers.ship_kernels") < installation.index("pip install")
    assert "NUMBA" not in (K8S / "Dockerfile").read_text(), "settings that the pods would have to repeat"


def test_the_image_has_one_copy_of_the_code_which_is_the_installed_wheel() -> None:
    assert "PYTHONPATH" not in str(instructions())
    (installation,) = [command for command in arguments_of("RUN") if "./source" in command]
    assert "--no-deps" in installation and "--editable" not in installation
    assert "rm -r source " in installation
    assert all(
        arguments.split()[-1].startswith("source")
        for arguments in arguments_of("COPY")
        if "constraints.txt" not in arguments
    )


def test_the_image_with_vllm_adds_vllm_and_no_second_copy_of_the_code() -> None:
    (command,) = [arguments for name, arguments in instructions("vllm.Dockerfile") if name == "RUN"]
    assert re.fullmatch(r"pip install --no-cache-dir vllm==\S+", command)


def test_haproxy_is_started_by_the_program_that_the_pods_name() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    text = (K8S / "base" / "rayservice.yaml").read_text()
    (path,) = re.findall(r"RAY_SERVE_HAPROXY_BINARY_PATH\n\s+value: (\S+)\n", text)
    assert path.startswith("/usr/local/bin/"), "where pip puts the commands of a wheel"
    assert path.rpartition("/")[2] in scripts


def test_downloads_go_to_the_volume() -> None:
    (path,) = re.findall(r"HF_HOME=(\S+)", " ".join(arguments_of("ENV")))
    assert path.startswith("/var/cache/turnstile/")
    assert "mountPath: /var/cache/turnstile}" in (K8S / "base" / "rayservice.yaml").read_text()
