"""Packages for Node: `make compat` installs them into the folder that `NODE_PACKAGES` names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.compat.conftest import MODEL

FOLDER = Path(os.environ["NODE_PACKAGES"])


def version(package: str) -> str:
    told: str = json.loads((FOLDER / "node_modules" / package / "package.json").read_text())["version"]
    return told


def run(name: str, url: str, api: str, call: str) -> None:
    """Run one call of the program `name` of this folder. Fails with its error."""
    script = FOLDER / name  # modules are looked for beside it
    script.write_text((Path(__file__).parent / "node" / name).read_text())
    told = subprocess.run(["node", script, url, MODEL, api, call], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
