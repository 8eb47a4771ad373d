"""The notebook of the library: it runs, and shows what it shows in the repository."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "library.ipynb"


def shown(notebook: Any) -> list[list[str]]:
    """Return the texts that each cell shows, without those on standard error, and without keys of grammars.

    The version of the compiler is part of a key.
    """
    return [
        [
            re.sub(r"(?<=Grammar\()[0-9a-f]{12}", "", output.get("text") or output["data"]["text/plain"])
            for output in cell.outputs
            if output.get("name") != "stderr"
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.timeout(300)
def test_the_notebook_shows_what_it_says() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    ran = copy.deepcopy(stored)
    NotebookClient(
        ran, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    assert shown(ran) == shown(stored)
    assert "Person(name='Alice Moore', age=34)" in shown(stored)[2]
