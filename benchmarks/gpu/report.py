"""The table that people read, and the JSON file that keeps everything."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu.checks import Check
from benchmarks.gpu.figures import Draws, Step

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


def line(one: Step | Draws, done: Iterable[Check | Step | Draws]) -> str:
    """A line of the table; shares are of the steps `done` before."""
    if isinstance(one, Step):
        return step_line(one)
    return draws_line(one, shares(one, [step for step in done if isinstance(step, Step)]))


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


def write(path: Path, document: dict[str, Any], done: Iterable[Check | Step | Draws]) -> None:
    """`document` with everything that is done so far, by kind; written after each cell, so a broken run leaves it."""
    kinds: dict[str, list[dict[str, Any]]] = {"checks": [], "steps": [], "draws": []}
    for one in done:
        kind = {Check: "checks", Step: "steps", Draws: "draws"}[type(one)]
        kinds[kind].append(asdict(one))
    path.write_text(json.dumps({**document, **kinds}, indent=1) + "\n")
