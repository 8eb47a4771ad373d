"""Tensors that are not on the host, without a device: every read by the host and every copy is seen.

    with Device():   everything made on `DEVICE` lies in ordinary memory and reports `DEVICE`; operations run there

Between launch and draw nothing may wait for a device. `Device.waits` are the operations that would: reads by the host,
shapes that depend on values, and copies that `gpu_workers.transfers` has not made. Streams, capture and replay are not
imitated: they need a GPU (`benchmarks.gpu`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gpu_workers import transfers
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.engine.step_loop import StepLoop
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.loader import LoadedModel, prepare
from gpu_workers.model.model_runner import ModelRunner
from gpu_workers.model.output_head import OutputHead
from gpu_workers.request import GrammarReference
from tests.gpu_workers.support import CONFIGS, byte_tokenizer, byte_vocabulary, tiny_model

Fetch = Callable[[GrammarReference], Awaitable[Any]]
DEVICE = torch.device("meta")
"""The one device that PyTorch has everywhere, beside the CPU."""

_aten = torch.ops.aten
_VALUES_DECIDE = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.repeat_interleave.Tensor,
    _aten._local_scalar_dense.default,
    _aten.item.default,
    _aten.argwhere.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
}


class OnDevice(Tensor):
    """A tensor of `DEVICE`; `host` has its values."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnDevice:
        assert host.device.type == "cpu"
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class Device(TorchDispatchMode):
    """Lets tensors be made on `DEVICE`; notes in `waits` what would wait for it while `watching`. One thread's."""

    def __init__(self) -> None:
        super().__init__()
        self.watching = False
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.watching and (wait := _wait(function, args, kwargs)):
            self.waits.append(wait)
        return _run(function, args, kwargs)


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """On the host; the result is on the device if it is made there, or of what is there."""
    leaves = tree_leaves((args, kwargs))
    target = next((one for one in leaves if isinstance(one, torch.device)), None)
    there = any(isinstance(one, OnDevice) for one in leaves) if target is None else target == DEVICE
    result = function(*tree_map(_host, args), **tree_map(_host, kwargs))
    if function is _aten.copy_.default:
        return args[0]
    return tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, result) if there else result


def _host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.host if isinstance(value, OnDevice) else value


def _wait(function: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
    """What of this operation waits for the device, and where it is called; None: nothing."""
    leaves = tree_leaves((args, kwargs))
    of = [isinstance(one, OnDevice) for one in leaves if isinstance(one, Tensor)]
    target = next((one for one in leaves if isinstance(one, torch.device)), None)
    if function in _VALUES_DECIDE and any(of):
        return _told(function)
    if function is _aten.index.Tensor and any(isinstance(one, OnDevice) and one.dtype == torch.bool for one in args[1]):
        return _told(function)
    if target is not None and of:
        down, up = of[0] and target != DEVICE, not of[0] and target == DEVICE
        return _told(function) if down or (up and not _by_transfers()) else None
    if function is _aten.copy_.default and of[0] != of[1]:
        return _told(function)
    # An index on the host goes up with the operation.
    if function in (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default) and of[0] and not all(of):
        return _told(function)
    return None


def _frames() -> list[Any]:
    frame, found = sys._getframe(2), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _by_transfers() -> bool:
    return any(frame.f_code is transfers.to_device.__code__ for frame in _frames())


def _told(function: Any) -> str:
    ours = next(
        (
            one
            for one in _frames()
            if "gpu_workers" in one.f_code.co_filename and __file__ not in one.f_code.co_filename
        ),
        None,
    )
    place = "" if ours is None else f" at {ours.f_code.co_filename.rsplit('/', 1)[-1]}:{ours.f_lineno}"
    return f"{function}{place}"


def moved(loaded: LoadedModel) -> LoadedModel:
    """The model with its weights and a pool of its own on the device; to be called inside of a `Device`."""
    pool, model = loaded.pool, loaded.model
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(OnDevice(parameter.detach()), requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, OnDevice(buffer))
    there = KVPool(
        layers=len(pool.keys),
        slots=pool.slots,
        length=pool.length,
        kv_heads=pool.keys[0].shape[1],
        head_dim=pool.keys[0].shape[3],
        dtype=pool.keys[0].dtype,
        device=DEVICE,
    )
    head = OutputHead(model.get_output_embeddings(), loaded.head.token_limit, separable=loaded.head.separable)
    runner = ModelRunner(model, there, separable=loaded.head.separable)
    return replace(loaded, pool=there, head=head, runner=runner)


@contextlib.contextmanager
def engine_there(kind: str, config: EngineConfig, fetch: Fetch) -> Iterator[tuple[Engine, Device]]:
    """An engine on the device, watched from each launch to the moment at which what was drawn is read."""
    device = Device()
    # PyTorch allows no view of an ordinary tensor of another class where gradients are off for good.
    with device, torch.inference_mode():
        loaded = moved(prepare(tiny_model(CONFIGS[kind]()), byte_tokenizer(), byte_vocabulary(), config))
    with pytest.MonkeyPatch.context() as patch:
        _enter_thread(patch, device)
        with device, torch.inference_mode():
            engine = Engine(loaded, config, fetch)
        try:
            yield engine, device
        finally:
            engine.close()


def _enter_thread(patch: pytest.MonkeyPatch, device: Device) -> None:
    run, launch, read = StepLoop.run, StepLoop._launch, StepLoop._read_pass

    def inside(loop: StepLoop) -> None:
        with device, torch.inference_mode():
            run(loop)

    def watched(loop: StepLoop, *arguments: Any) -> Any:
        launched = launch(loop, *arguments)
        device.watching = True
        return launched

    def unwatched(loop: StepLoop) -> None:
        device.watching = False
        read(loop)

    patch.setattr(StepLoop, "run", inside)
    patch.setattr(StepLoop, "_launch", watched)
    patch.setattr(StepLoop, "_read_pass", unwatched)
