"""Table and picture of results of `benchmarks.gpu`: tokens per second of one sequence and of all sequences together.

python -m benchmarks.gpu.pareto gpu.json --vocabulary 131072 --picture docs/images/pareto.svg
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frame import Table, new_parser
from benchmarks.gpu.figures import Step
from benchmarks.gpu.report import Document

_WIDTH, _HEIGHT, _LEFT, _BELOW, _LEGEND = 760, 460, 70, 50, 190
_COLOURS = ("#1b6ca8", "#c1440e", "#2e8540", "#7a3e9d", "#b8860b", "#008b8b", "#8b0000", "#555555")


@dataclass(frozen=True, slots=True)
class Point:
    """Throughput with a given number of concurrent sequences.

    Attributes:
        rows: Number of sequences.
        user: Tokens per second of one sequence.
        together: Tokens per second of all sequences.
    """

    rows: int
    user: float
    together: float


def curves(steps: list[Step]) -> dict[str, list[Point]]:
    """Return the points of each curve.

    Args:
        steps: Measurements for one vocabulary.

    Returns:
        Points by way to run steps, in ascending order of the number of sequences.
    """
    found: dict[str, list[Point]] = {}
    for step in sorted(steps, key=lambda step: step.rows):
        user = 1000 * step.tokens / step.ms
        found.setdefault(step.way, []).append(Point(step.rows, user, user * step.rows))
    return found


def show(found: dict[str, list[Point]]) -> None:
    """Print a table with a row per number of sequences. The cells are "tokens/s of one sequence / of all sequences".

    Args:
        found: Points by way to run steps, from `curves`. Each way is a column.
    """
    table = Table("sequences", *found)
    for many in sorted({point.rows for points in found.values() for point in points}):
        by_way = {way: point for way, points in found.items() for point in points if point.rows == many}
        cells = {way: f"{point.user:,.0f} / {point.together:,.0f}" for way, point in by_way.items()}
        table.row(many, *(cells.get(way, "") for way in found))


def picture(found: dict[str, list[Point]]) -> str:
    """Return an SVG picture with a curve for each way to run steps. Both axes are logarithmic.

    Args:
        found: Points by way to run steps, from `curves`.
    """
    points = [point for curve in found.values() for point in curve]
    across = _Scale([point.user for point in points], _LEFT, _WIDTH - _LEGEND)
    up = _Scale([point.together for point in points], _HEIGHT - _BELOW, 20)
    middle = (_LEFT + _WIDTH - _LEGEND) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(middle, _HEIGHT - 8, "tokens a second for one user", "middle"),
        f'<g transform="rotate(-90 16 {_HEIGHT / 2:.0f})">',
        _text(16, _HEIGHT / 2, "tokens a second in all", "middle"),
        "</g>",
    ]
    for value in across.ticks():
        parts.append(f'<path d="M{across(value):.0f} 20V{_HEIGHT - _BELOW}" stroke="#ddd"/>')
        parts.append(_text(across(value), _HEIGHT - 32, f"{value:,g}", "middle"))
    for value in up.ticks():
        parts.append(f'<path d="M{_LEFT} {up(value):.0f}H{_WIDTH - _LEGEND}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 8, up(value) + 4, f"{value:,g}", "end"))
    for number, (way, curve) in enumerate(found.items()):
        colour, y = _COLOURS[number % len(_COLOURS)], 30 + 20 * number
        places = [(across(point.user), up(point.together), point.rows) for point in curve]
        path = " ".join(f"{place_x:.1f},{place_y:.1f}" for place_x, place_y, _ in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for place_x, place_y, rows in places:
            title = f"<title>{way}, {rows} sequences</title>"
            parts.append(f'<circle cx="{place_x:.1f}" cy="{place_y:.1f}" r="3" fill="{colour}">{title}</circle>')
        parts.append(f'<path d="M{_WIDTH - _LEGEND + 12} {y}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(_WIDTH - _LEGEND + 36, y + 4, way, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


class _Scale:
    """Logarithmic axis between two coordinates of the picture."""

    def __init__(self, values: list[float], first: float, last: float) -> None:
        self._least, self._most = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._least) / (self._most - self._least)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Return the values 1, 2, 5, 10, 20, ... that are on the axis."""
        candidates = [
            step * 10.0**power for power in range(math.floor(self._least), math.ceil(self._most)) for step in (1, 2, 5)
        ]
        return [value for value in candidates if self._least <= math.log10(value) <= self._most]


def main(command_line: list[str] | None = None) -> None:
    """Parse the command line, print the table and write the picture.

    Args:
        command_line: Arguments of the command line; None: those of the process.
    """
    parser = new_parser(__doc__)
    parser.add_argument("measured", type=Path, help="what `python -m benchmarks.gpu --output` has written")
    parser.add_argument("--vocabulary", type=int, default=131_072, help="tokens of the vocabulary to show")
    parser.add_argument("--picture", type=Path, help="an SVG file to write")
    arguments = parser.parse_args(command_line)
    entries = [one for found in Document.read(arguments.measured).entries.values() for one in found]
    steps = [one for one in entries if isinstance(one, Step) and one.vocabulary == arguments.vocabulary]
    if not steps:
        parser.error(f"{arguments.measured} has no steps of a vocabulary of {arguments.vocabulary} tokens")
    found = curves(steps)
    show(found)
    if arguments.picture is not None:
        arguments.picture.write_text(picture(found))


if __name__ == "__main__":
    main()
