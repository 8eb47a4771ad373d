from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents import REPOSITORY, blocks

DOCUMENT = "docs/kubernetes.md"
NAMESPACE = "turnstile"


class Shell:
    """Runs commands of the document where it says that they are run: in the clone, beside `../my-turnstile`."""

    def __init__(self, folder: Path, image: str) -> None:
        self.clone = folder / "turnstile"
        self.overlay = folder / "my-turnstile"
        self.overlay.mkdir()
        for part in ("k8s", "examples"):
            shutil.copytree(REPOSITORY / part, self.clone / part)
        name, _, tag = image.rpartition(":")
        (example, *_) = [block.text for block in blocks(DOCUMENT, "yaml") if "kind: Kustomization" in block.text]
        example = re.sub("newName: turnstile.*", f"newName: {name}", example)
        (self.overlay / "kustomization.yaml").write_text(re.sub("newTag: .*", f"newTag: {tag}", example))

    def run(self, commands: str, *, timeout_s: float = 1200, fails: bool = False) -> str:
        """The output of commands, both streams. What they leave running is ended."""
        # A file, because a port-forward that goes on would keep a pipe open.
        with tempfile.TemporaryFile("w+") as file:
            shell = ["bash", "-c" if fails else "-ec", commands]
            process = subprocess.Popen(
                shell, cwd=self.clone, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(timeout=timeout_s)
            finally:
                end_group(process.pid)
            file.seek(0)
            output = file.read()
        assert fails or code == 0, f"{commands}\nended with {code}:\n{output}"
        return output

    def json(self, command: str) -> Any:
        return json.loads(self.run(f"{command} --output json"))


def end_group(pid: int) -> None:
    """End what is left of a process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def of_section(title: str, number: int = 0) -> str:
    """The text of a shell block of the document, by the beginning of its section's heading and its number there."""
    text = (REPOSITORY / DOCUMENT).read_text()
    begin = text[: text.index(f"\n## {title}")].count("\n") + 1
    after = re.search(r"\n## ", text[text.index(f"\n## {title}") + 1 :])
    end = begin + text[text.index(f"\n## {title}") + 1 :][: after.start()].count("\n") + 1 if after else 1 << 30
    return [block.text for block in blocks(DOCUMENT, "sh") if begin < block.line <= end][number]


def block(section: str, containing: str) -> str:
    """The first shell block of a section that contains a text."""
    number = 0
    while containing not in (text := of_section(section, number)):
        number += 1
    return text


def eventually(found: Callable[[], Any], within_s: float = 240) -> Any:
    """Return what `found` returns as soon as it is true."""
    deadline = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(2)
    return value


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """For each file of tests an overlay of its own, and the namespace made anew."""
    if not os.environ.get("KUBECONFIG"):
        pytest.exit("set KUBECONFIG: these tests need a cluster of their own (see CONTRIBUTING.md)", returncode=2)
    shell = Shell(tmp_path_factory.mktemp("cluster"), os.environ.get("TURNSTILE_IMAGE", "turnstile:0.2.0"))
    # One that is being deleted goes, one that serves somebody stays.
    eventually(lambda: not shell.run(f"kubectl get namespace {NAMESPACE} --ignore-not-found"))
    yield shell
    shell.run(f"kubectl delete namespace {NAMESPACE} --ignore-not-found --wait=false", fails=True)
