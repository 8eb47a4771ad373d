"""Plugin of vLLM that installs Turnstile as the structured outputs backend.

vLLM calls `register` in each of its processes, because the package has the entry point `vllm.general_plugins`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Engines of vLLM. Only processes that compute masks or receive requests import one of these modules.
_ENGINES = ("vllm.v1.engine.core", "vllm.v1.engine.llm_engine", "vllm.v1.engine.async_llm")


def register() -> None:
    """Install Turnstile in place of vLLM's backend `outlines`, if the environment variable TURNSTILE_VLLM is set.

    If the variable is missing, empty, `0`, `false` or `no`, the function does nothing. In a process that has not yet
    imported an engine of vLLM (such as a worker), Turnstile is installed when the process imports an engine.
    `installation.install` may raise UnknownInterfaceError and ValueError.
    """
    if os.environ.get("TURNSTILE_VLLM", "0").lower() in ("", "0", "false", "no"):
        return
    if any(name in sys.modules for name in _ENGINES) or os.environ.get("VLLM_USE_RUST_FRONTEND", "0") != "0":
        _install()  # the Rust front end must be rejected before it imports and starts an engine
    elif not any(isinstance(finder, _EngineFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _EngineFinder())


def _install() -> None:
    from deployments.vllm.installation import install

    install()
    _hide_library()


def _hide_library() -> None:
    """Let workers of vLLM 0.32 and later start in a process that has imported llvmlite, if they have no Triton.

    These workers call `vars()` on every object in every module. llvmlite's library object returns a function to
    `vars()` instead of a dictionary.
    """
    from llvmlite.binding import ffi

    getattr(ffi.lib, "_fntab", {}).setdefault("__dict__", {})


class _EngineFinder(MetaPathFinder):
    """Import hook that installs Turnstile after the first engine of vLLM and the engines that it imports are loaded."""

    def __init__(self) -> None:
        self._importing = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _ENGINES:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                self._importing += 1
                try:
                    original(module)
                finally:
                    self._importing -= 1
                if not self._importing and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
