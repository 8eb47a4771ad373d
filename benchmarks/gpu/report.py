"""Results of `benchmarks.gpu`: the printed table, and the JSON file with all results."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import TypeAdapter

from benchmarks.gpu.checks import Check
from benchmarks.gpu.figures import Draws, Step
from benchmarks.gpu.trace import Trace

# One result. The fields of the classes differ, so pydantic can tell the classes apart in a file.
Entry = Check | Step | Draws | Trace

HEADER = (
    f"{'vocabulary':>10} {'rows':>4}  {'way':24} {'ms/step':>8} {'ms/token':>8} {'tokens/pass':>11} {'by device':>9}"
    f" {'up B/step':>10} {'down B/step':>11}"
)


def step_line(step: Step) -> str:
    """Return one measurement of decode steps as a row of the table.

    Args:
        step: The measurement.
    """
    return (
        f"{step.vocabulary:10} {step.rows:4}  {step.way:24} {step.ms:8.2f} {step.ms / step.tokens:8.2f}"
        f" {step.tokens:11.2f} {step.on_device:9.0%} {step.bytes_up:10.0f} {step.bytes_down:11.0f}"
    )


def shares(draws: Draws, steps: Iterable[Step]) -> dict[str, float]:
    """Return the shares of masks and sampling in the time of a decode step without drafts.

    A share can be negative if the difference is smaller than the noise.

    Args:
        draws: Times of the sampler alone.
        steps: Measurements. Only those with the vocabulary and the number of sequences of `draws` are used.

    Returns:
        "masks" and "masks and sampling": times of the sampler, divided by the time of a guided step that the host
        samples. "guiding by the host" and "guiding by the device": time of a guided step minus the time of an unguided
        step, divided by the time of the guided step. Shares whose steps are missing are left out.
    """
    of = {step.way: step.ms for step in steps if (step.vocabulary, step.rows) == (draws.vocabulary, draws.rows)}
    found: dict[str, float] = {}
    if guided := of.get("guided, host"):
        found["masks"] = (draws.masked - draws.unmasked) / guided
        found["masks and sampling"] = (draws.masked - draws.head) / guided
        if unguided := of.get("unguided, host"):
            found["guiding by the host"] = (guided - unguided) / guided
    if (guided := of.get("guided, device")) and (unguided := of.get("unguided, device")):
        found["guiding by the device"] = (guided - unguided) / guided
    return found


def draws_line(draws: Draws, found: dict[str, float]) -> str:
    """Return the times of the sampler as a line.

    Args:
        draws: Times of the sampler.
        found: Shares of a step, from `shares`.
    """
    told = ", ".join(f"{name} {share:.2%}" for name, share in found.items())
    return (
        f"{draws.vocabulary:10} {draws.rows:4}  head {draws.head:.3f} ms, with a draw {draws.unmasked:.3f}, with masks"
        f" and a draw {draws.masked:.3f}; prepared in {draws.prepare:.3f}; of a step: {told}"
    )


def trace_lines(trace: Trace) -> str:
    """Return a trace as lines: phases of the host, then kernels of the device, then waits of the host.

    Args:
        trace: The trace.
    """
    host = ", ".join(f"{name} {ms:.2f}" for name, ms in trace.host.items())
    lines = [f"{trace.vocabulary:10} {trace.rows:4}  {trace.way:24} {trace.wall:8.2f} ms a step; host: {host}"]
    if trace.busy:
        lines.append(f"    the device works {trace.busy:.2f} ms of it, on {trace.launches:.0f} kernels; the longest:")
        lines += [f"    {ms:8.3f} ms  {name}" for name, ms in trace.kernels.items()]
        lines += [f"    the host waits {times:.1f} times a step at {place}" for place, times in trace.waits.items()]
    return "\n".join(lines)


def line(one: Entry, done: Iterable[Entry]) -> str:
    """Return one result as lines of the table.

    Args:
        one: The result.
        done: All results so far. Shares of a step are computed from the `Step` results among them.
    """
    match one:
        case Check():
            verdict = "equal" if one.differing == 0 else f"{one.differing} DIFFER"
            return f"{one.name}: {one.compared} compared, {verdict}"
        case Step():
            return step_line(one)
        case Draws():
            return draws_line(one, shares(one, [step for step in done if isinstance(step, Step)]))
        case Trace():
            return trace_lines(one)


def machine(device: torch.device) -> dict[str, Any]:
    """Return the versions of the libraries, and the name and memory of the device.

    Args:
        device: The device.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": platform.processor() or "cpu",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"device": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)}
        found["cuda"] = torch.version.cuda
    return found


@dataclass(slots=True)
class Document:
    """All results so far, which are saved as a JSON file.

    Attributes:
        machine: Versions of libraries and the device, from the function `machine`.
        states: By part: a list of its state ("done", or the reason why it is not finished) and its seconds.
        entries: By part: its results.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    states: dict[str, list[Any]] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    def take(self, part: str, other: Document, state: str, seconds: float) -> None:
        """Replace the state and the results of a part.

        Args:
            part: Name of the part.
            other: Document that the process of the part has written.
            state: "done", or the reason why the part is not finished.
            seconds: Duration of the part.
        """
        self.machine = other.machine or self.machine
        self.states[part] = [state, round(seconds, 1)]
        self.entries[part] = other.entries.get(part, [])

    @property
    def differing(self) -> bool:
        """True if a correctness check has found a difference."""
        return any(isinstance(one, Check) and one.differing for found in self.entries.values() for one in found)

    def table(self) -> str:
        """Return the table of all parts as text."""
        lines = [", ".join(f"{name} {value}" for name, value in self.machine.items())]
        steps = [one for found in self.entries.values() for one in found]
        for part, (state, seconds) in self.states.items():
            lines.append(f"\n{part}: {state}, {seconds} s")
            lines += [HEADER] if any(isinstance(one, Step) for one in self.entries[part]) else []
            lines += [line(one, steps) for one in self.entries[part]]
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write the document to a JSON file."""
        path.write_bytes(TypeAdapter(Document).dump_json(self, indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Document:
        """Return the document of a JSON file; an empty document if there is no file."""
        return TypeAdapter(Document).validate_json(path.read_bytes()) if path.exists() else cls()
