"""A plugin of vLLM's for tests: engines on CPUs share the experts of a mixture. In memory; nothing of vLLM is changed.

vLLM 0.29 to 0.32 starts such engines and cannot run them (vLLM issue 57837): its communicator of CPUs has neither of
the two collectives by which engines exchange tokens, and its experts on CPUs take the number of another engine's expert
for a place in their own weights. `enabled_in` makes a folder for PYTHONPATH in which vLLM's processes find the plugin.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

SAYS = "experts are shared on CPUs"


def enabled_in(folder: Path) -> str:
    """Writes what an installer would write into a folder of `folder`; its path, for PYTHONPATH."""
    site = folder / "experts-on-cpus"
    metadata = site / "experts_on_cpus-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: experts-on-cpus\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\nexperts-on-cpus = {__name__}:register\n")
    return str(site)


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv
    CPUUnquantizedExperts.apply = _own_experts(CPUUnquantizedExperts.apply)
    print(SAYS, file=sys.stderr)


def _all_gatherv(
    group: Any, tensors: Tensor | list[Tensor], dim: int = 0, sizes: list[int] | None = None
) -> Tensor | list[Tensor]:
    """Each rank's rows behind one another. `sizes`: how many each rank has."""
    assert dim == 0 and sizes is not None
    if isinstance(tensors, list):
        return [_all_gatherv(group, tensor, dim, sizes) for tensor in tensors]
    # Gloo gathers tensors of one shape only.
    padded = tensors.new_zeros(max(sizes), *tensors.shape[1:])
    padded[: len(tensors)] = tensors
    gathered = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(gathered, padded, group=group.device_group)
    return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])


def _reduce_scatterv(group: Any, tensor: Tensor, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """The sum over all ranks of this rank's rows. `sizes`: how many each rank has."""
    assert dim == 0 and sizes is not None
    total = tensor.clone()
    torch.distributed.all_reduce(total, group=group.device_group)
    return total.split(sizes)[group.rank_in_group].clone()


def _own_experts(apply: Any) -> Any:
    """The same, in which other engines' experts weigh nothing: their numbers are no places in this engine's weights."""

    def of_own(experts: Any, *arguments: Any, **keywords: Any) -> Tensor:
        expert_map = keywords["expert_map"]

        def select(*routing: Any) -> tuple[Tensor, Tensor]:
            weights, ids = type(experts)._select_experts(experts, *routing)
            if expert_map is None:
                return weights, ids
            places = expert_map[ids]
            return weights.masked_fill(places < 0, 0), places.clamp(min=0).to(ids.dtype)

        experts._select_experts = select
        return apply(experts, *arguments, **keywords)

    return of_own
