"""The lines of k8s/Dockerfile: read for the tests, and run in a virtual environment in place of an image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import venv
from pathlib import Path

from tests.k8s.manifests import K8S, REPOSITORY

Instruction = tuple[str, str]

STAND_INS = ("chown", "useradd")
"""Commands of the recipe that need root. In a `BuiltImage` they do nothing."""


def instructions(name: str = "Dockerfile") -> list[Instruction]:
    """(instruction, arguments), continuation lines joined, comments dropped."""
    text = re.sub(r"^\s*#.*\n", "", (K8S / name).read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, arguments) for name, _, arguments in (line.partition(" ") for line in lines if line.strip())]


def arguments_of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


class BuiltImage:
    """What the lines of k8s/Dockerfile make, with a virtual environment as the image's Python.

    Attributes:
        workdir: The image's working directory.
        environment: The variables of a process in the image; nothing of this process is in them but network settings.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = {
            "/opt/turnstile": str(folder / "opt"),
            "/var/cache/turnstile": str(folder / "cache"),
            "/usr/local": str(folder / "python"),
        }
        venv.create(folder / "python", with_pip=True)
        stand_ins = folder / "stand-ins"
        stand_ins.mkdir()
        for name in STAND_INS:
            (stand_ins / name).write_text("#!/bin/sh\n")
            (stand_ins / name).chmod(0o755)
        self.workdir = folder
        kept = {name: value for name, value in os.environ.items() if re.match(r"(?i)pip_|.*_proxy$|ssl_|lang", name)}
        self.environment = {
            **kept,
            "HOME": str(folder),
            "PATH": os.pathsep.join([str(folder / "python" / "bin"), str(stand_ins), os.defpath]),
        }
        self._arguments: dict[str, str] = {}
        for name, arguments in instructions():
            getattr(self, f"_{name.lower()}", self._ignored)(self.placed(arguments))

    def placed(self, text: str) -> str:
        """A text with the image's folders in place of the paths that it names."""
        for place, folder in self._places.items():
            text = text.replace(place, folder)
        return text

    def run(self, *command: str) -> str:
        """The output of a command in the image."""
        done = subprocess.run(command, cwd=self.workdir, env=self.environment, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, command
        return done.stdout

    def _ignored(self, _: str) -> None:
        """FROM, USER, EXPOSE."""

    def _arg(self, arguments: str) -> None:
        name, _, default = arguments.partition("=")
        self._arguments[name] = os.environ.get(name, default.strip('"'))

    def _env(self, arguments: str) -> None:
        for pair in shlex.split(arguments):
            name, _, value = pair.partition("=")
            self.environment[name] = re.sub(r"\$\{(\w+)\}", lambda match: self._arguments[match[1]], value)

    def _workdir(self, folder: str) -> None:
        self.workdir = Path(folder)
        self.workdir.mkdir(parents=True)

    def _copy(self, arguments: str) -> None:
        *sources, target = shlex.split(arguments)
        for source in sources:
            path, place = REPOSITORY / source, self.workdir / target
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, place, symlinks=True, ignore=ignored, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)

    def _run(self, command: str) -> None:
        environment = {**self._arguments, **self.environment}
        subprocess.run(["sh", "-ec", command], cwd=self.workdir, env=environment, check=True)
