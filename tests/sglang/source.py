"""Functions of SGLang whose modules cannot be imported without a GPU, taken out of the installed source."""

from __future__ import annotations

import ast
import importlib.metadata
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any


def source_of(path: str) -> str:
    """Return the text of a file of the installed package `sglang`."""
    return Path(str(importlib.metadata.distribution("sglang").locate_file(path))).read_text()


def take(path: str, names: list[str], namespace: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Define functions or methods of `path`, and nothing else of it, in `namespace`, which has what they use."""
    source = source_of(path)
    found = {
        node.name: textwrap.dedent(ast.get_source_segment(source, node, padded=True) or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name in names
    }
    code = "\n\n".join(["from __future__ import annotations", *(found[name] for name in names)])
    exec(compile(code, path, "exec"), namespace)
    return {name: namespace[name] for name in names}
