"""numba options of all kernels (functions that numba compiles), and a registry of the argument types of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from grammar_workers.numba_options.cache import KernelCache

# Options of all kernels.
#
# Kernels release the GIL and hold no lock. Indices are not checked, because the callers have validated the arrays. C
# code does not call kernels.
OPTIONS: dict[str, Any] = {
    "nogil": True,
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

# Kernels that Python calls, in the modules imported so far, with the numba types of their arguments.
CALLED: list[tuple[Any, tuple[Any, ...]]] = []


def called_with(*arguments: Any) -> Callable[[Any], Any]:
    """Return a decorator that registers the argument types of a kernel (a function that numba compiles).

    `kernels.compile_all` compiles the registered kernels for these types before the first request. Python must call the
    kernel with these types only: for other types, numba would compile the kernel during the call. The decorator returns
    the kernel, which from then on is cached on disk. Kernels that only kernels call are part of the cached ones.

    Args:
        arguments: numba types of the arguments, in order.
    """

    def note(kernel: Any) -> Any:
        kernel._cache = KernelCache(kernel.py_func)
        CALLED.append((kernel, arguments))
        return kernel

    return note


def compiled_for(*signatures: tuple[Any, ...], **options: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function during the import, or loads it from the cache of kernels.

    Python can call the compiled function with these argument types only, or with types that numba converts to them.

    Args:
        signatures: numba types of the arguments, for each version of the function.
        options: Options of numba.
    """

    def compiled(function: Any) -> Any:
        kernel = numba.njit(**options)(function)
        kernel._cache = KernelCache(function)
        for arguments in signatures:
            kernel.compile(arguments)
        kernel.disable_compile()
        return kernel

    return compiled


def readonly(array: Any) -> Any:
    """Return the read-only variant of a numba array type.

    Args:
        array: numba type of a writable array.
    """
    return array.copy(readonly=True)
