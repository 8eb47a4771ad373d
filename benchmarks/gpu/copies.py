"""Counter of the bytes that PyTorch copies between host and device. It intercepts the dispatch of operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class CopyCounter(TorchDispatchMode):
    """Context manager that counts the copied bytes of the thread that enters it.

    Attributes:
        up: Bytes from the host to a device.
        down: Bytes from a device to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up = 0
        self.down = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in _COPIES:
            source: Tensor = args[0] if function is torch.ops.aten._to_copy.default else args[1]
            self._count(source.device.type, result.device.type, source.nbytes)
        elif function is torch.ops.aten._local_scalar_dense.default:
            self._count(args[0].device.type, "cpu", args[0].nbytes)
        return result

    def _count(self, source: str, target: str, nbytes: int) -> None:
        if source == "cpu" != target:
            self.up += nbytes
        elif target == "cpu" != source:
            self.down += nbytes
