"""numba options of all kernels (functions that numba compiles), and a registry of the argument types of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from grammar_workers.numba_options import cache  # noqa: F401 - says where the kernels are kept

# Options of all kernels.
#
# Kernels release the GIL and hold no lock. Indices are not checked, because the callers have validated the arrays. C
# code does not call kernels.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "boundscheck": False,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
# Options of kernels that neither create nor return arrays.
#
# Without reference counts for the arrays that are passed, such kernels take two fifths less time (docs/decisions/0029).
BORROWS: dict[str, Any] = {**OPTIONS, "_nrt": False}
# Further options of kernels that only kernels call.
#
# Python cannot call them. A wrapper that unpacks all arrays of a recognizer takes longer to compile than most kernels,
# and would be compiled again in each kernel that calls them.
INNER: dict[str, Any] = {"no_cpython_wrapper": True}

Kernel = TypeVar("Kernel")
# Kernels that Python calls, in the modules imported so far, with the numba types of their arguments.
CALLED: list[tuple[Any, tuple[Any, ...]]] = []


def called_with(*arguments: Any) -> Callable[[Kernel], Kernel]:
    """Return a decorator that registers the argument types of a kernel (a function that numba compiles).

    `kernels.compile_all` compiles the registered kernels for these types before the first request. Python must call the
    kernel with these types only: for other types, numba would compile the kernel during the call. The decorator returns
    the kernel unchanged.

    Args:
        arguments: numba types of the arguments, in order.
    """

    def note(kernel: Kernel) -> Kernel:
        CALLED.append((kernel, arguments))
        return kernel

    return note


def readonly(array: Any) -> Any:
    """Return the read-only variant of a numba array type.

    Args:
        array: numba type of a writable array.
    """
    return array.copy(readonly=True)
