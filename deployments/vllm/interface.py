"""Check that the base classes of vLLM or SGLang have the expected methods and parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

FIRST_VLLM, LAST_VLLM = "0.29", "0.33"
# Supported releases. The extra `vllm` installs none of them, because builds of vLLM have different names.
SUPPORTED_VLLM = f"vLLM {FIRST_VLLM} to {LAST_VLLM}"

# Class -> method -> names of its parameters.
Methods = Mapping[str, Mapping[str, tuple[str, ...]]]


class UnknownInterfaceError(RuntimeError):
    """The installed vLLM or SGLang has other classes, methods or parameters than the plugin requires."""


def check_methods(module: Any, methods: Methods, engine: str) -> None:
    """Check that the classes of a module have the expected methods with the expected parameters.

    Args:
        module: Module of vLLM or SGLang that defines the classes.
        methods: Name of a class -> name of a method -> names of its parameters, in order.
        engine: Name and version of the engine, for the error message.

    Raises:
        UnknownInterfaceError: A method is missing or has other parameters. The message names the first such method.
    """
    for name, known in methods.items():
        for method, parameters in known.items():
            found = getattr(getattr(module, name, None), method, None)
            if found is None or tuple(inspect.signature(found).parameters) != parameters:
                raise UnknownInterfaceError(f"{engine} is not supported: {name}.{method} takes other parameters")
