"""Where numba keeps the compiled kernels: a folder of their own for each version of the sources they are made of.

numba notices a change of the file that a function stands in, but not of the files whose functions and constants it has
taken up: kernels would go on with the old ones after an update. So the folder's name is a digest of them all. This
module must be imported before any kernel; the package does, whose options each kernel takes.
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
    """The modules under `package` with compiled functions, and those whose names they import: constants and tuples."""
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
    """The folder below `base` for kernels made of `sources` as they are now, by this numba.

    Two environments with other versions of numba would undo each other's work in one folder.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return base / f"kernels-{digest.hexdigest()[:16]}"


def _base() -> Path:
    """NUMBA_CACHE_DIR, or beside the package, or for the user where the package cannot be written to."""
    if _settings.CACHE_DIR:
        return Path(_settings.CACHE_DIR)
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "turnstile"


SOURCES = kernel_sources(_PACKAGE)
_settings.CACHE_DIR = str(cache_folder(_base(), SOURCES))
