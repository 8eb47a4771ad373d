"""How a forward pass runs beside the engine thread: launched now, waited for when its hidden states are needed.

    wait = launch(forward)      the device works
    ...                         the host works: text, streams, messages, masks of the coming draw
    hidden_states = wait()

The same two calls whether a CUDA stream, a second thread or nobody works meanwhile. Between them nobody but `forward`
touches the KV pool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

Forward = Callable[[], Tensor]
Wait = Callable[[], Tensor]
"""Returns what the forward pass returned, or raises what it raised. To be called exactly once."""
Launch = Callable[[Forward], Wait]


@contextlib.contextmanager
def launching(device: torch.device, overlap: bool | None) -> Iterator[Launch]:
    """The way to launch on `device`. `overlap` None: where it pays, which is on a GPU (docs/decisions/0016)."""
    if not (device.type == "cuda" if overlap is None else overlap):
        yield when_awaited
    elif device.type == "cuda":
        stream = torch.cuda.Stream(device)
        yield lambda forward: on_stream(stream, forward)
    else:
        with ThreadPoolExecutor(1, thread_name_prefix="forward") as thread:
            yield lambda forward: thread.submit(forward).result


def when_awaited(forward: Forward) -> Wait:
    """No overlap: host work of the last step comes first, so that what it has to tell is not late by a step."""
    return forward


def on_stream(stream: torch.cuda.Stream, forward: Forward) -> Wait:
    """Queues the pass on `stream` behind what the current stream has been given, such as copies of prefixes."""
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        hidden_states = forward()
        computed = torch.cuda.Event()
        computed.record(stream)

    def wait() -> Tensor:
        current = torch.cuda.current_stream(stream.device)
        current.wait_event(computed)
        hidden_states.record_stream(current)  # allocated on `stream`: its memory is not free before the sampler is done
        return hidden_states

    return wait
