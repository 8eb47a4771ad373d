"""Compile the kernels (numba functions) for the wheel or an image, into the package `grammar_workers` itself.

    python -m grammar_workers.ship_kernels

An installation of this package on another machine then loads the kernels, and compiles nothing at its first start. The
kernels run on all CPUs with the features in `numba_options.cache.PORTABLE`. Another CPU, or another version of numba,
llvmlite or Python, compiles its own kernels. The package can contain the kernels for several versions: run the command
with each of them.
"""

from __future__ import annotations

import os
import subprocess
import sys

from numba.core.registry import cpu_target

from grammar_workers.numba_options.cache import COMPLETE, PORTABLE, SHIPPED

_PROGRAM = "import sys; from grammar_workers.kernel_progress import compile_visibly; compile_visibly(sys.stderr)"


def main() -> None:
    """Compile the kernels into the package.

    Raises:
        SystemExit: There is no portable kind of CPU for this platform, or the compilation failed.
    """
    platform = cpu_target.target_context.codegen().magic_tuple()[0]
    if platform not in PORTABLE:
        raise SystemExit(f"no portable kernels for {platform}, only for {', '.join(PORTABLE)}")
    # numba reads these settings when it is imported. The user's own must not change the kernels of others.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "NUMBA_CACHE_DIR": str(SHIPPED),
        "NUMBA_CPU_NAME": PORTABLE[platform][0],
        "NUMBA_CPU_FEATURES": "",
    }
    subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, check=True)
    if not any(SHIPPED.glob(f"*/{COMPLETE}")):
        raise SystemExit(f"the compilation failed, or {SHIPPED} is not writable")


if __name__ == "__main__":
    main()
