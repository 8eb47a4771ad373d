"""Runs a forward pass concurrently with work on the host (CPU). The pass is launched first and awaited later.

    wait = launch(forward)      the device starts the forward pass
    ...                         the host works: text, streams, messages, masks of the next tokens
    hidden_states = wait()

The pass runs on a CUDA stream, on a second thread, or (without overlap) inside of `wait`. Between `launch` and the
return of `wait`, only `forward` may access the KV cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

Forward = Callable[[], Tensor]
# Function that returns the result of the forward pass, or raises its error. It must be called exactly once.
Wait = Callable[[], Tensor]
Launch = Callable[[Forward], Wait]


@contextlib.contextmanager
def launching(device: torch.device, overlap: bool | None) -> Iterator[Launch]:
    """Return a context manager that provides a function to launch forward passes on `device`.

    Args:
        device: Device of the model.
        overlap: If true, a forward pass runs concurrently with work on the host: on a CUDA stream (GPU) or on a second
            thread (CPU). If false, the pass runs only when the caller waits for its output. None: true on a GPU, false
            on a CPU (docs/decisions/0016).

    Yields:
        A function `launch`. It takes a forward pass (a function without arguments that returns hidden states) and
        returns a function `wait`. `wait` returns the hidden states of the pass or raises its error, and must be called
        exactly once.
    """
    if not (device.type == "cuda" if overlap is None else overlap):
        yield when_awaited
    elif device.type == "cuda":
        stream = torch.cuda.Stream(device)
        yield lambda forward: on_stream(stream, forward)
    else:
        with ThreadPoolExecutor(1, thread_name_prefix="forward") as thread:
            yield lambda forward: thread.submit(forward).result


def when_awaited(forward: Forward) -> Wait:
    """Launch a forward pass without overlap: the pass runs only when the caller waits for its output.

    Host work before the wait is not delayed by the pass.

    Args:
        forward: The forward pass: a function without arguments that returns hidden states.

    Returns:
        `forward` itself, as the function that waits: it runs the pass and returns the hidden states.
    """
    return forward


def on_stream(stream: torch.cuda.Stream, forward: Forward) -> Wait:
    """Launch a forward pass on a CUDA stream. The pass starts after all operations that the current stream has queued.

    Args:
        stream: CUDA stream of forward passes.
        forward: The forward pass: a function without arguments that returns hidden states. It is called at once.

    Returns:
        A function that returns the hidden states. It makes the current CUDA stream wait for the pass, but does not
        block the host.
    """
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
