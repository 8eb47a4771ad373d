"""A compiled kernel is made anew when a file that it has taken something from changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba

import grammar_workers
from grammar_workers.matching.kernels import mask
from grammar_workers.numba_options import cache as kernel_cache

PROGRAM = """
import sys
from pathlib import Path
import numba
from grammar_workers.numba_options.cache import cache_folder, kernel_sources
folder = Path(sys.argv[1])
numba.config.CACHE_DIR = str(cache_folder(folder / "cache", kernel_sources(folder)))
sys.path.insert(0, sys.argv[1])
import caller
print(caller.call(1), sum(caller.call.stats.cache_hits.values()))
"""
CALLED = "from numba import njit\n@njit(cache=True)\ndef called(x):\n    return x + {}\n"
CALLER = "from numba import njit\nfrom called import called\n@njit(cache=True)\ndef call(x):\n    return called(x)\n"


def run(folder: Path) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return [int(word) for word in output.split()]


def test_a_change_in_a_called_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert run(tmp_path) == [2, 0]
    assert run(tmp_path) == [2, 1], "an unchanged kernel must come from the cache"
    (tmp_path / "called.py").write_text(CALLED.format(5))
    assert run(tmp_path) == [6, 0]


def test_the_kernels_use_it() -> None:
    assert Path(numba.config.CACHE_DIR).name.startswith("kernels-")
    assert Path(numba.config.CACHE_DIR) in Path(mask.fill_mask.stats.cache_path).parents
    names = {path.name for path in kernel_cache.kernel_sources(Path(grammar_workers.__file__).parent)}
    assert {"step.py", "mask.py", "slices.py", "trie.py"} <= names
    # Without compiled functions, but with what these take up.
    assert {"__init__.py", "json_text.py"} <= names
