"""The entry point `vllm.general_plugins`, which vLLM calls in each of its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ENGINES = ("vllm.v1.engine.core", "vllm.v1.engine.llm_engine", "vllm.v1.engine.async_llm")
"""Imported by the processes of vLLM that make masks or take in requests, and by no other."""


def register() -> None:
    """Puts Turnstile in the place of outlines where `TURNSTILE_VLLM` is set; imports nothing where it is not.

    A process that has none of vLLM's engines, such as a worker, gets nothing of Turnstile before it imports one.
    """
    if os.environ.get("TURNSTILE_VLLM", "0").lower() in ("", "0", "false", "no"):
        return
    if any(name in sys.modules for name in _ENGINES) or os.environ.get("VLLM_USE_RUST_FRONTEND", "0") != "0":
        _install()  # the Rust front end imports no engine before it starts one, and is refused before that
    elif not any(isinstance(finder, _EngineFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _EngineFinder())


def _install() -> None:
    from deployments.vllm.installation import install

    install()
    _hide_library()


def _hide_library() -> None:
    """Lets workers of vLLM 0.32 and later start in a process that has imported llvmlite, if they have no Triton.

    They read `vars()` of everything in every module, and for llvmlite's library that is a function.
    """
    from llvmlite.binding import ffi

    getattr(ffi.lib, "_fntab", {}).setdefault("__dict__", {})


class _EngineFinder(MetaPathFinder):
    """Installs Turnstile when the first of vLLM's engines is there, and those that it imports itself are, too."""

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
