"""Copies between host and device that nobody waits for.

host array --to_device--> device          pinned memory, in the order of the current stream
device     --HostCopy---> host            copied behind the work before it; `read` waits for that, and nothing else
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: Tensor | NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copies host values to `device` while the host goes on.

    Args:
        values: A tensor or array of the host; nobody may change it afterwards.
        device: Where to; on a CPU the result may share memory with `values`.
        dtype: The type there; None: that of `values`.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if dtype is not None:
        tensor = tensor.to(dtype)
    if device.type != "cuda":
        return tensor.to(device)
    # PyTorch keeps pinned memory until the copy has read it.
    return tensor.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """The values of a tensor, on their way to the host."""

    def __init__(self, values: Tensor) -> None:
        """Queues the copy on the current stream, behind whatever makes `values`."""
        self._values, self._copied = values, None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> Tensor:
        """The values on the host; waits until the device has got this far."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.cpu()
