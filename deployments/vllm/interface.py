"""Whether an engine's base classes are those that we implement."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

FIRST_VLLM, LAST_VLLM = "0.29", "0.33"
SUPPORTED_VLLM = f"vLLM {FIRST_VLLM} to {LAST_VLLM}"
"""The releases whose interface is known. The extra `vllm` installs none of them: builds have different names."""

Methods = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By class and method, the names of its parameters."""


class UnknownInterfaceError(RuntimeError):
    """This engine is not one that the plugin knows."""


def check_methods(module: Any, methods: Methods, engine: str) -> None:
    """Raises UnknownInterfaceError naming the first of `methods` that `module` has otherwise, or has not."""
    for name, known in methods.items():
        for method, parameters in known.items():
            found = getattr(getattr(module, name, None), method, None)
            if found is None or tuple(inspect.signature(found).parameters) != parameters:
                raise UnknownInterfaceError(f"{engine} is not supported: {name}.{method} takes other parameters")
