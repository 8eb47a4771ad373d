"""The programs of docs/typescript.md: type-checked, and run one after the other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.compat.node_packages import FOLDER

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "typescript.md").read_text()
PROGRAMS = re.findall(r"^```ts\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
ADDRESS = "http://127.0.0.1:8000"
COMPILER = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck", "--types", "node")


def test_the_programs_of_the_document_run(root: str) -> None:
    folder = FOLDER / "document"  # modules are looked for in the folder around it
    folder.mkdir(exist_ok=True)
    names = [f"program{number}" for number, _ in enumerate(PROGRAMS)]
    for name, program in zip(names, PROGRAMS, strict=True):
        (folder / f"{name}.mts").write_text(program.replace(ADDRESS, root))
    compiler = ["node", FOLDER / "node_modules" / "typescript" / "bin" / "tsc", *COMPILER]
    told = subprocess.run([*compiler, *(f"{name}.mts" for name in names)], cwd=folder, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout
    for name in names:
        told = subprocess.run(["node", f"{name}.mjs"], cwd=folder, capture_output=True, text=True, timeout=120)
        assert told.returncode == 0 and told.stdout.strip() not in ("", "undefined"), f"{name}: {told.stderr}"


def test_the_document_names_the_versions_that_ran() -> None:
    dependencies = json.loads((Path(__file__).parent / "node" / "package.json").read_text())["dependencies"]
    for package, version in dependencies.items():
        if package != "@types/node":
            shown = "TypeScript" if package == "typescript" else f"`{package}`"
            assert f"{shown} {version}" in " ".join(TEXT.split()), package
