"""Cache of compiled kernels (functions that numba compiles), on disk.

numba's own cache has one global setting for its folder, and looks only at the file of the compiled function: it ignores
changes in the files that this file imports. So kernels have a cache of their own. Each combination of source files,
versions and CPU has a folder in two places:

- *the user's folder* (`NUMBA_CACHE_DIR`, `__pycache__` or `~/.cache/turnstile`): kernels that this machine compiled;
- *the shipped folder* in the package, which is never written to: kernels for all CPUs with the features in `PORTABLE`.
  `grammar_workers.ship_kernels` compiles them for the wheel.

The name of the folder contains a digest of all conditions. So a kernel for other conditions is never found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

_PACKAGE = Path(__file__).parents[1]
_IMPORTED = re.compile(rb"^from grammar_workers\.([\w.]+) import", re.MULTILINE)
# Folder of the shipped kernels. It exists only where `grammar_workers.ship_kernels` has made it.
SHIPPED = _PACKAGE / "compiled_kernels"
# LLVM's name of a platform: LLVM's name of the CPU that shipped kernels are compiled for, and the features that a CPU
# must have to run them. x86-64-v3 is a level of the x86-64 psABI. All ARM CPUs of 64 bits run kernels for `generic`.
PORTABLE = {
    "x86_64-unknown-linux-gnu": (
        "x86-64-v3",
        "+avx,+avx2,+bmi,+bmi2,+crc32,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    ),
    "aarch64-unknown-linux-gnu": ("generic", ""),
}
# Name of a file in a folder that has all kernels.
COMPLETE = "complete"


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


def digest_of(sources: Iterable[Path]) -> str:
    """Return a digest of the contents of source files. Their times and folders do not matter.

    Args:
        sources: Paths of the files, in a fixed order.
    """
    return hashlib.sha256(b"".join(hashlib.sha256(source.read_bytes()).digest() for source in sources)).hexdigest()


SOURCES = kernel_sources(_PACKAGE)
SOURCE_DIGEST = digest_of(SOURCES)


def kernel_folders() -> tuple[Path, Path]:
    """Return the user's folder and the shipped folder of the kernels for this process. They may not exist.

    If the CPU lacks a feature that shipped kernels need, the second folder is of kernels for exactly this CPU. The
    package usually has no such folder. The settings `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` replace the real CPU.
    """
    platform, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    shipped_for = cpu, features
    if platform in PORTABLE:
        portable, needed = PORTABLE[platform]
        if set(filter(None, needed.split(","))) <= set(features.split(",")):
            shipped_for = portable, ""
    return _folder(_base(), platform, cpu, features), _folder(SHIPPED, platform, *shipped_for)


def _folder(base: Path, *target: str) -> Path:
    """Return the folder in `base` for this code, these versions of Python and numba, and a target of LLVM."""
    versions = numba.__version__, llvmlite.__version__, sysconfig.get_config_var("SOABI")
    return base / f"kernels-{hashlib.sha256(repr((SOURCE_DIGEST, versions, target)).encode()).hexdigest()[:16]}"


def _base() -> Path:
    """Return NUMBA_CACHE_DIR, or the package's `__pycache__`, or the user's cache folder if that is not writable."""
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        return Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "turnstile"


class KernelCache(NullCache):
    """The cache of one kernel, in place of numba's `FunctionCache`.

    A file has a digest and the pickled kernel. A file with a wrong digest is ignored, as is a folder that cannot be
    read or written: numba then compiles the kernel.
    """

    def __init__(self, function: Any) -> None:
        """Create the cache of the kernel that numba compiles from a Python function."""
        self._function = function

    @property
    def cache_path(self) -> str:
        """The user's folder."""
        return str(kernel_folders()[0])

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these argument types from the first folder that has it; None: no folder has it."""
        target_context.refresh()
        for folder in kernel_folders():
            stored = b""
            with contextlib.suppress(OSError):
                stored = (folder / self._name(sig)).read_bytes()
            if stored[:32] == hashlib.sha256(stored[32:]).digest():
                return CompileResult._rebuild(target_context, *pickle.loads(stored[32:]))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel to the user's folder, unless its code contains addresses of this process."""
        if data.library.has_dynamic_globals:
            return
        # The annotation is a listing of the source code with its path, a quarter of the file.
        content = dumps(data._replace(type_annotation="")._reduce())
        with contextlib.suppress(OSError):
            path = kernel_folders()[0] / self._name(sig)
            path.parent.mkdir(parents=True, exist_ok=True)
            written = path.with_name(f"{path.name}.{os.getpid()}")
            written.write_bytes(hashlib.sha256(content).digest() + content)
            written.replace(path)

    def _name(self, arguments: Any) -> str:
        """Return the file name of the kernel for these argument types.

        It depends on the content of the kernel's own source file, which may be outside of the package.
        """
        source = Path(self._function.__code__.co_filename).read_bytes()
        key = hashlib.sha256(source + repr(arguments).encode()).hexdigest()[:16]
        return f"{self._function.__module__}.{self._function.__qualname__}-{key}.nbc"
