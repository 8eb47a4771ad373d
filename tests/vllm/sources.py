"""vLLM's source distribution, fetched with pip: releases that nobody runs here, and vLLM's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

_BUILD_REQUIREMENTS = ("setuptools-rust", "semantic-version", "setuptools-scm", "vcs-versioning")
"""vLLM's `setup.py` imports them when pip asks for its metadata; torch, which it imports too, is that of this vLLM."""


class NoSourceError(RuntimeError):
    """pip found no source distribution of this release."""


def vllm_source(release: str, folder: Path) -> Path:
    """The unpacked source of a release in `folder`. Raises NoSourceError with the end of pip's output."""
    tools = folder / "tools"
    _pip("install", "--no-deps", "--target", str(tools), *_BUILD_REQUIREMENTS)
    _pip(
        *("download", "--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={release}"),
        *("--dest", str(folder)),
        # Metadata only: nothing is built, and the version is the file's, without a suffix for the machine.
        PYTHONPATH=str(tools),
        VLLM_TARGET_DEVICE="empty",
        VLLM_VERSION_OVERRIDE=release,
    )
    with tarfile.open(folder / f"vllm-{release}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"vllm-{release}"


def _pip(*arguments: str, **settings: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoSourceError((done.stdout + done.stderr)[-2000:])
