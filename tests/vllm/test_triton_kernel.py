"""The Triton kernel of our masks: vLLM's environment is the one that has Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_the_kernel_is_exact_compiles_and_is_traced() -> None:
    command = [sys.executable, "-m", "tests.gpu_workers.triton_kernel", "--cases", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for told in ("equal, bit for bit", "compiles for 3 types", "takes it into a graph"):
        assert told in done.stdout
