"""The table that people read, and the JSON file that keeps everything."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu.checks import Check
from benchmarks.gpu.figures import Draws, Step
from benchmarks.gpu.trace import Trace

Entry = Check | Step | Draws | Trace
_KINDS: dict[str, Any] = {one.__name__: one for one in (Check, Step, Draws, Trace)}

MASKS_TARGET = 0.01
"""Of a step, at most."""
SAMPLING_TARGET = 0.05
"""Of a step, masks included."""
HEADER = (
    f"{'vocabulary':>10} {'rows':>4}  {'way':24} {'ms/step':>8} {'ms/token':>8} {'tokens/pass':>11} {'by device':>9}"
    f" {'up B/step':>10} {'down B/step':>11}"
)


def check_line(check: Check) -> str:
    verdict = "equal" if check.differing == 0 else f"{check.differing} DIFFER"
    return f"{check.name}: {check.compared} compared, {verdict}"


def step_line(step: Step) -> str:
    return (
        f"{step.vocabulary:10} {step.rows:4}  {step.way:24} {step.ms:8.2f} {step.ms / step.tokens:8.2f}"
        f" {step.tokens:11.2f} {step.on_device:9.0%} {step.bytes_up:10.0f} {step.bytes_down:11.0f}"
    )


def shares(draws: Draws, steps: Iterable[Step]) -> dict[str, float]:
    """Of a step guided by the host without drafts: masks, and masks and sampling; what only guiding adds.

    `masks` compares draws with and without masks; `guiding` whole steps, host work included; both ways may come out
    below 0 where the difference is smaller than the noise.
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
    told = ", ".join(f"{name} {share:.2%}" for name, share in found.items())
    return (
        f"{draws.vocabulary:10} {draws.rows:4}  head {draws.head:.3f} ms, with a draw {draws.unmasked:.3f}, with masks"
        f" and a draw {draws.masked:.3f}; prepared in {draws.prepare:.3f}; of a step: {told}"
    )


def trace_lines(trace: Trace) -> str:
    host = ", ".join(f"{name} {ms:.2f}" for name, ms in trace.host.items())
    lines = [f"{trace.vocabulary:10} {trace.rows:4}  {trace.way:24} {trace.wall:8.2f} ms a step; host: {host}"]
    if trace.busy:
        lines.append(f"    the device works {trace.busy:.2f} ms of it, on {trace.launches:.0f} kernels; the longest:")
        lines += [f"    {ms:8.3f} ms  {name}" for name, ms in trace.kernels.items()]
        lines += [f"    the host waits {times:.1f} times a step at {place}" for place, times in trace.waits.items()]
    return "\n".join(lines)


def line(one: Entry, done: Iterable[Entry]) -> str:
    """Lines of the table; shares are of the steps `done` before."""
    match one:
        case Check():
            return check_line(one)
        case Step():
            return step_line(one)
        case Draws():
            return draws_line(one, shares(one, [step for step in done if isinstance(step, Step)]))
        case Trace():
            return trace_lines(one)


def machine(device: torch.device) -> dict[str, Any]:
    """What ran this."""
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
    """The results so far, by part. `states`: "done" or the reason why a part is not, and its seconds."""

    machine: dict[str, Any] = field(default_factory=dict)
    states: dict[str, list[Any]] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    def take(self, part: str, other: Document, state: str, seconds: float) -> None:
        """Takes over what a process of its own has found in `part`."""
        self.machine = other.machine or self.machine
        self.states[part] = [state, round(seconds, 1)]
        self.entries[part] = other.entries.get(part, [])

    @property
    def differing(self) -> bool:
        """True if a check has found a difference."""
        return any(isinstance(one, Check) and one.differing for found in self.entries.values() for one in found)

    def table(self) -> str:
        """Everything that people read."""
        lines = [", ".join(f"{name} {value}" for name, value in self.machine.items())]
        steps = [one for found in self.entries.values() for one in found]
        for part, (state, seconds) in self.states.items():
            lines.append(f"\n{part}: {state}, {seconds} s")
            lines += [HEADER] if any(isinstance(one, Step) for one in self.entries[part]) else []
            lines += [line(one, steps) for one in self.entries[part]]
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """To a JSON file, each entry with its kind."""
        entries = {
            part: [{"kind": type(one).__name__, **asdict(one)} for one in found] for part, found in self.entries.items()
        }
        document = {"machine": self.machine, "states": self.states, "entries": entries}
        path.write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Document:
        """Empty where there is no file."""
        if not path.exists():
            return cls()
        read = json.loads(path.read_text())
        entries = {
            part: [
                _KINDS[one["kind"]](**{name: value for name, value in one.items() if name != "kind"}) for one in found
            ]
            for part, found in read["entries"].items()
        }
        return cls(read["machine"], read["states"], entries)
