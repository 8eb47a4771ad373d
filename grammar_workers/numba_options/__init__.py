"""How all compiled loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from grammar_workers.numba_options import cache  # noqa: F401 - says where the kernels are kept

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "boundscheck": False,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
"""They release the GIL and keep no lock. Indices are not checked: whoever calls them has checked the arrays. Nobody
calls them from C."""
BORROWS: dict[str, Any] = {**OPTIONS, "_nrt": False}
"""For kernels that neither make nor return arrays: they count no references to those they are passed, which was two
fifths of their time (docs/decisions/0029)."""
INNER: dict[str, Any] = {"no_cpython_wrapper": True}
"""Besides, for kernels that only kernels call. Python cannot: what would unpack all arrays of a recognizer for it takes
longer to compile than most kernels, and would be compiled again in each that calls them."""

Kernel = TypeVar("Kernel")
CALLED: list[tuple[Any, tuple[Any, ...]]] = []
"""The kernels that Python calls, in the modules imported so far, with the types of their arguments."""


def called_with(*arguments: Any) -> Callable[[Kernel], Kernel]:
    """Which types of arguments (numba's) Python calls a kernel with, so that it can be compiled ahead for them
    (`kernels.ahead`). It must be called with no others: they would be compiled when the call waits for it."""

    def note(kernel: Kernel) -> Kernel:
        CALLED.append((kernel, arguments))
        return kernel

    return note


def readonly(array: Any) -> Any:
    """The type of an array that must not be written to."""
    return array.copy(readonly=True)
