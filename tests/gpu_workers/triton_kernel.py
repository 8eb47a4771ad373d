"""The Triton kernel of `masked_scores` without a GPU: run in Triton's interpreter against PyTorch, and compiled.

    pip install triton
    python -m tests.gpu_workers.triton_kernel

Scores must be equal bit for bit; the kernel must compile for NVIDIA's compute capabilities 8.0 and 9.0, and
`torch.compile` must take it into a graph. Triton is no dependency of the project on a CPU, but of vLLM: `make
test-vllm` runs this. What a GPU makes of the kernel is checked by `python -m benchmarks.gpu`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import torch

_WIDTHS = (1, 31, 32, 33, 100, 2047, 2048, 2049, 5000, 9001)
_TYPES = {"*fp32": torch.float32, "*bf16": torch.bfloat16, "*fp16": torch.float16}
_CAPABILITIES = (80, 90)


def interpret(cases: int) -> None:
    """Random logits, rows and temperatures; rows too short and too long for the logits, logits that are views."""
    from gpu_workers.sampling.masked_scores import masked_scores_by_operations
    from gpu_workers.sampling.masked_scores_kernel import masked_scores_on_cuda

    compared = 0
    for seed in range(cases):
        rng = np.random.default_rng(seed)
        lines, tokens, many = int(rng.integers(1, 6)), int(rng.choice(_WIDTHS)), int(rng.integers(1, 7))
        words = max(1, -(-tokens // 32) + int(rng.integers(-2, 3)))
        wide = torch.from_numpy(rng.normal(size=(lines, tokens + int(rng.integers(0, 9))))) * rng.choice([1, 30])
        logits = wide.to(list(_TYPES.values())[seed % 3])[:, :tokens]
        rows = torch.from_numpy(rng.integers(-(2**31), 2**31, (many, words)).astype(np.int32))
        rows[:, 0] |= 1
        rows[0] = rng.choice([-1, 1])
        places = torch.from_numpy(rng.integers(-1, many, lines)) if seed % 7 else None
        temperature = torch.from_numpy(rng.choice([1.0, 0.7, 1e-3, 1e-300, 100.0], lines))
        used = None if places is None else rows
        expected = masked_scores_by_operations(logits, used, places, temperature)
        actual = masked_scores_on_cuda(logits, used, places, temperature.float())
        if not torch.equal(actual.view(torch.int32), expected.view(torch.int32)):
            raise SystemExit(f"case {seed} differs")
        compared += actual.numel()
    print(f"{compared} scores of {cases} cases are equal, bit for bit")


def compile_kernel() -> None:
    """To PTX and machine code, for every type of logits, with masks and without."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpu_workers.sampling import masked_scores_kernel as kernel

    for logits in _TYPES:
        for masked in (True, False):
            constants = {"SMALLEST": float(torch.finfo(torch.float32).tiny), "BLOCK": 2048}
            types = {"logits": logits, "rows": "*i32", "places": "*i64", "temperature": "*fp32", "scores": "*fp32"}
            types |= dict.fromkeys(("tokens", "words", "logits_stride", "rows_stride"), "i32")
            if not masked:
                constants |= {"rows": None, "places": None}
            types |= dict.fromkeys(constants, "constexpr")
            source = ASTSource(fn=kernel._score, signature=types, constexprs=constants)
            for capability in _CAPABILITIES:
                made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
                if "div.rn.f32" not in made.asm["ptx"] or not made.asm["cubin"]:
                    raise SystemExit(f"{logits}, {capability}: quotients are not rounded as PyTorch's are")
    print(f"compiles for {len(_TYPES)} types of logits, capabilities {', '.join(map(str, _CAPABILITIES))}")


def trace() -> None:
    """By `torch.compile`, whole, as in a step of a CUDA device: tensors that have a device and no values do."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gpu_workers.sampling.masked_scores import masked_scores

    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    with FakeTensorMode():
        logits = torch.empty(4, 100, device="cuda:0")
        rows = torch.empty(3, 4, dtype=torch.int32, device="cuda:0")
        places = torch.empty(4, dtype=torch.int64, device="cuda:0")
        temperature = torch.empty(4, dtype=torch.float64, device="cuda:0")
        torch.compile(masked_scores, fullgraph=True, backend=keep)(logits, rows, places, temperature)
    if "turnstile.masked_scores" not in graphs[0].code:
        raise SystemExit("the compiler has not taken the kernel")
    print("the compiler takes it into a graph")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=80)
    arguments = parser.parse_args()
    # Triton reads the variable when a kernel is defined, so each way has a process.
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpret(arguments.cases)
        return
    command = [sys.executable, "-m", "tests.gpu_workers.triton_kernel", "--cases", str(arguments.cases)]
    subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)
    compile_kernel()
    trace()


if __name__ == "__main__":
    main()
