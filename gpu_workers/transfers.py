"""Copies between the memory of the host (CPU) and of the device (GPU) that do not block the host.

host array --to_device--> device    through pinned memory; queued on the current CUDA stream
device     --HostCopy---> host      queued on the current CUDA stream; `read` waits until the copy is complete
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: Tensor | NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor or array from the host to a device, without blocking the host.

    Args:
        values: A tensor or array on the host. It must not be changed afterwards.
        device: Target device. If it is a CPU, the returned tensor may share memory with `values`.
        dtype: Type on the device; None keeps the type of `values`.

    Returns:
        The values on `device`.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if dtype is not None:
        tensor = tensor.to(dtype)
    if device.type != "cuda":
        return tensor.to(device)
    # PyTorch keeps pinned memory until the copy has read it.
    return tensor.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A copy of a tensor from a device to the host, which runs while the host continues.

    The copy is queued on the current CUDA stream, after the operations that compute the tensor. If the tensor is on a
    CPU, nothing is copied.

    Args:
        values: The tensor to copy. On a CPU, it must not be changed before `read`.
    """

    def __init__(self, values: Tensor) -> None:
        """Queue the copy of `values`."""
        self._values, self._copied = values, None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> Tensor:
        """Wait until the device has finished the copy, and return the copied values as a CPU tensor."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.cpu()
