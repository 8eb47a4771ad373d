"""Folder in which numba caches compiled kernels. Each version of the source code has its own folder.

numba recompiles a function if the file of the function changes. It ignores changes in the files that this file imports.
So the name of the folder contains a digest of all these files. The import of this module sets numba's cache folder. It
must precede the import of any kernel: kernels import `numba_options`, and `numba_options` first imports this module.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numba

_settings: Any = numba.config
_PACKAGE = Path(__file__).parents[1]
_IMPORTED = re.compile(rb"^from grammar_workers\.([\w.]+) import", re.MULTILINE)


def kernel_sources(package: Path) -> list[Path]:
    """Return the source files that determine the compiled kernels (functions that numba compiles).

    These are all modules with the text `from numba import`, and the modules of the package that they import directly.

    Args:
        package: Root folder of the package `grammar_workers`.

    Returns:
        Paths of existing files in the package, sorted.
    """
    found: set[Path] = set()
    for path in package.rglob("*.py"):
        source = path.read_bytes()
        if b"from numba import" in source:
            found.add(path)
            for name in _IMPORTED.findall(source):
                place = package / name.decode().replace(".", "/")
                found |= {place.with_suffix(".py"), place / "__init__.py"}
    return sorted(path for path in found if path.exists())


def cache_folder(base: Path, sources: Iterable[Path]) -> Path:
    """Return the path of the cache folder for the given source files and the installed version of numba.

    The name contains a digest of the files and the version. So each version of the code or of numba has its own folder.
    The folder is not created.

    Args:
        base: Parent folder.
        sources: Source files of the kernels.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return base / f"kernels-{digest.hexdigest()[:16]}"


def _base() -> Path:
    """Return NUMBA_CACHE_DIR, or the package's `__pycache__`, or the user's cache folder if that is not writable."""
    if _settings.CACHE_DIR:
        return Path(_settings.CACHE_DIR)
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "turnstile"


SOURCES = kernel_sources(_PACKAGE)
_settings.CACHE_DIR = str(cache_folder(_base(), SOURCES))
