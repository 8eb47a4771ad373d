"""The code blocks of the documents, and how they are run."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
# A Python block that imports one of these is run by `make test-engines`, which has them.
ENGINES = re.compile(r"^(?:from|import) (?:llama_cpp|mlx_lm)\b", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the document that the text begins in."""

    language: str
    text: str
    line: int


def blocks(document: str, *languages: str) -> list[Block]:
    """The blocks of a document, a path below the repository; of the given languages only, if any are given."""
    text = (REPOSITORY / document).read_text()
    found = [Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1) for match in _BLOCK.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def printed(block: Block, document: str, namespace: dict[str, Any]) -> str:
    """Runs a Python block in `namespace`; what it printed. Tracebacks name the lines of the document."""
    output = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(REPOSITORY / document), "exec")
    with contextlib.redirect_stdout(output):
        exec(code, namespace)
    return output.getvalue()


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a shell block, without comments; quoted text and `\\` go on over line ends."""
    waiting = ""
    for line in block.text.splitlines():
        waiting += line + "\n"
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:  # inside of quotes
            continue
        waiting = ""
        if words:
            yield words
    assert not waiting, f"an open quote in line {block.line}"


@dataclass(frozen=True)
class CurlRequest:
    """What a `curl` of a document sends; `url` as it is written there."""

    line: int
    url: str
    headers: dict[str, str]
    body: str | None


def curl_requests(document: str, address: str) -> Iterator[CurlRequest]:
    """Those to `address`, but not those with `-N`: a stream to be broken."""
    for block in blocks(document, "bash", "sh"):
        for words in commands(block):
            if words[0] != "curl" or "-N" in words:
                continue
            options = dict(itertools.pairwise(words))
            (url,) = (word for word in words if word.startswith(address))
            headers = dict([options["-H"].split(": ")]) if "-H" in options else {}
            yield CurlRequest(block.line, url, headers, options.get("-d"))
