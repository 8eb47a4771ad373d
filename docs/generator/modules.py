"""Page of the modules, generated from the first paragraph of each module docstring."""

from __future__ import annotations

import ast
from pathlib import Path

from deployments.shipped import REPOSITORY

PACKAGES = ("turnstile_llm", "grammar_workers", "gpu_workers", "deployments")
INTRODUCTION = """\
# Modules

All modules, with the first paragraph of each docstring. [Architecture](../architecture.md) shows the path of a request
through the modules and the files that a change touches. `make reference` generates this page from the code."""


def modules() -> str:
    """Return the document: a heading for each folder, and a line for each module in it."""
    sections = [INTRODUCTION]
    for package in PACKAGES:
        sections += map(_section, sorted({path.parent for path in (REPOSITORY / package).rglob("*.py")}))
    return "\n\n".join(sections) + "\n"


def _section(folder: Path) -> str:
    name = folder.relative_to(REPOSITORY)
    depth = "##" if len(name.parts) == 1 else "###"
    lines = [f"{depth} `{name}/`", "", _summary(folder / "__init__.py"), ""]
    files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    lines += [f"- `{path.name}`: {_summary(path)}" for path in files]
    return "\n".join(lines).rstrip()


def _summary(path: Path) -> str:
    """Return the first paragraph of the docstring, in one line. A module without a docstring raises ValueError."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if docstring is None:
        raise ValueError(f"{path} has no docstring")
    return " ".join(docstring.split("\n\n")[0].split())
