"""What clients name reaches the log as one line, as text and as JSON."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator

import pytest
from ray._common.formatters import JSONFormatter, TextFormatter

from grammar_workers.logs import SERVE, escaped, get_logger
from tests.documents import REPOSITORY

UNSAFE = "a\nb\rc\x1b[2Jd\u2028e\u2029f\x85g\x00h\u202ei\ud800j\x7f"
BREAKS = {"\n", "\r", "\x1b", "\u2028", "\u2029", "\x85", "\x00", "\u202e", "\ud800", "\x7f"}


class Kept(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(params=[logging.Formatter("%(message)s"), TextFormatter(), JSONFormatter()])
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    """A handler of an ancestor, as those of Ray Serve."""
    handler = Kept(request.param)
    logger = logging.getLogger("ray.serve")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_record_is_one_line(kept: Kept) -> None:
    get_logger(SERVE).warning("refused %s: %s", UNSAFE, {"name": UNSAFE}, extra={"tenant": UNSAFE})
    (line,) = kept.lines
    assert not BREAKS & set(line)
    assert "a" in line and "\\u2028" in line


def test_lines_of_a_traceback_do_not_look_like_records(kept: Kept) -> None:
    try:
        raise ValueError("x\nINFO forged" + UNSAFE)
    except ValueError:
        get_logger(SERVE).exception("failed")
    (line,) = kept.lines
    assert not (BREAKS - {"\n"}) & set(line)
    assert all(one.startswith("  ") for one in line.split("\n")[1:])


def test_other_text_stays() -> None:
    assert escaped("schön, 漢字 \\n 'x' 😀") == "schön, 漢字 \\n 'x' 😀"


def test_every_logger_of_ours_has_the_filter() -> None:
    """Modules call `get_logger`; `logging.getLogger` only sets levels of others."""
    for package in ("deployments", "gpu_workers", "grammar_workers"):
        for path in (REPOSITORY / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "logger" and path.name != "logs.py":
                    assert "getLogger(" not in ast.unparse(node.value), path
