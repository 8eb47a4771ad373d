"""Tokens a second for one user against tokens a second in all: table and picture of what `benchmarks.gpu` measured.

python -m benchmarks.gpu.pareto gpu.json --vocabulary 131072 --picture docs/images/pareto.svg
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.figures import Step
from benchmarks.gpu.report import Document

_WIDTH, _HEIGHT, _LEFT, _BELOW, _LEGEND = 760, 460, 70, 50, 190
_COLOURS = ("#1b6ca8", "#c1440e", "#2e8540", "#7a3e9d", "#b8860b", "#008b8b", "#8b0000", "#555555")


@dataclass(frozen=True, slots=True)
class Point:
    """`rows` sequences at a time: tokens a second for each of them, and for all together."""

    rows: int
    user: float
    together: float


def curves(steps: list[Step]) -> dict[str, list[Point]]:
    """By way, fewest rows first."""
    found: dict[str, list[Point]] = {}
    for step in sorted(steps, key=lambda step: step.rows):
        user = 1000 * step.tokens / step.ms
        found.setdefault(step.way, []).append(Point(step.rows, user, user * step.rows))
    return found


def table(found: dict[str, list[Point]]) -> str:
    """In Markdown: a row for each number of sequences, "for one / in all" for each way."""
    rows = sorted({point.rows for points in found.values() for point in points})
    lines = [f"| sequences | {' | '.join(found)} |", f"|---{'|---' * len(found)}|"]
    for many in rows:
        cells = []
        for points in found.values():
            point = next((one for one in points if one.rows == many), None)
            cells.append("" if point is None else f"{point.user:,.0f} / {point.together:,.0f}")
        lines.append(f"| {many} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(found: dict[str, list[Point]]) -> str:
    """An SVG with a curve for each way; both axes are logarithmic, points are numbers of sequences."""
    points = [point for curve in found.values() for point in curve]
    across = _Scale([point.user for point in points], _LEFT, _WIDTH - _LEGEND)
    up = _Scale([point.together for point in points], _HEIGHT - _BELOW, 20)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for value in across.ticks():
        x = across(value)
        parts.append(f'<path d="M{x:.0f} 20V{_HEIGHT - _BELOW}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{_HEIGHT - 32}" text-anchor="middle">{value:,g}</text>')
    for value in up.ticks():
        y = up(value)
        parts.append(f'<path d="M{_LEFT} {y:.0f}H{_WIDTH - _LEGEND}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value:,g}</text>')
    middle = (_LEFT + _WIDTH - _LEGEND) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">tokens a second for one user</text>')
    parts.append(
        f'<text x="16" y="{_HEIGHT / 2:.0f}" text-anchor="middle"'
        f' transform="rotate(-90 16 {_HEIGHT / 2:.0f})">tokens a second in all</text>'
    )
    for number, (way, curve) in enumerate(found.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across(point.user):.1f},{up(point.together):.1f}" for point in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across(point.user):.1f}" cy="{up(point.together):.1f}" r="3" fill="{colour}">'
            f"<title>{way}, {point.rows} sequences</title></circle>"
            for point in curve
        ]
        y = 30 + 20 * number
        parts.append(f'<path d="M{_WIDTH - _LEGEND + 12} {y}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_WIDTH - _LEGEND + 36}" y="{y + 4}">{way}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Scale:
    """Values on a logarithmic axis between two places of the picture."""

    def __init__(self, values: list[float], first: float, last: float) -> None:
        self._least, self._most = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._least) / (self._most - self._least)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """1, 2, 5, 10, 20 .. as far as they are inside."""
        candidates = [
            step * 10.0**power for power in range(math.floor(self._least), math.ceil(self._most)) for step in (1, 2, 5)
        ]
        return [value for value in candidates if self._least <= math.log10(value) <= self._most]


def main(command_line: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, help="what `python -m benchmarks.gpu --output` has written")
    parser.add_argument("--vocabulary", type=int, default=131_072, help="tokens of the vocabulary to show")
    parser.add_argument("--picture", type=Path, help="an SVG file to write")
    arguments = parser.parse_args(command_line)
    entries = [one for found in Document.read(arguments.measured).entries.values() for one in found]
    steps = [one for one in entries if isinstance(one, Step) and one.vocabulary == arguments.vocabulary]
    if not steps:
        parser.error(f"{arguments.measured} has no steps of a vocabulary of {arguments.vocabulary} tokens")
    found = curves(steps)
    print(table(found))
    if arguments.picture is not None:
        arguments.picture.write_text(picture(found))


if __name__ == "__main__":
    main()
