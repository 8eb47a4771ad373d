"""Run the official JSON-Schema-Test-Suite, all drafts: count right and wrong verdicts and rejected schemas.

    python -m tests.grammar_workers.json_schema_suite [--data FOLDER] [--draft 2020-12] [--details] [--write]

FOLDER is a checkout of json-schema-org/JSON-Schema-Test-Suite (its `tests`, with `remotes` inside or next to it). The
default is the copy in tests/data. Each schema is compiled, with properties in any order and 1.0 allowed for an integer.
The automaton reads each instance as `json.dumps(..., ensure_ascii=False)` serializes it. A verdict is *right*,
*refused* (the compiler rejects the schema with a typed error), *wrongly accepted* or *wrongly rejected*. An
unsatisfiable schema counts as a schema for which every instance is invalid.

The *ratchet file* lists every test that is not right. `--write` writes it. The project's tests fail if a test becomes
worse. The exit status is 1 if a test is worse than in the ratchet file.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.frame import new_parser, progress
from benchmarks.texts import state_after
from grammar_workers import GrammarError, GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.json_schema.read.keywords import DRAFTS

_HOME = Path(__file__).parents[1]
ARCHIVE = _HOME / "data" / "json-schema-test-suite" / "suite.tar.xz"
RATCHET = _HOME / "grammar_workers" / "json_schema_suite.json"
# Base URL that the suite uses for its remote schemas.
REMOTES = "http://localhost:1234/"
# Folder of the suite -> the meta-schema of its draft.
FOLDERS = dict(zip(["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"], DRAFTS, strict=True))
OUTCOMES = ("right", "refused", "wrongly accepted", "wrongly rejected")

# Path inside the suite -> its JSON.
Files = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one test.

    Attributes:
        file: Path in the suite, for example `draft7/optional/format/date.json`.
        name: Descriptions of the group of tests and of the test.
        outcome: One of `OUTCOMES`.
        reason: Error message if the schema was rejected.
    """

    file: str
    name: str
    outcome: str
    reason: str = ""

    @property
    def is_required(self) -> bool:
        """True if the test is not in one of the suite's folders `optional`."""
        return "/optional/" not in self.file


# -- the files -----------------------------------------------------------------------------------------------------


def read_archive(path: Path = ARCHIVE) -> Files:
    """Read the copy of the suite in this repository.

    Args:
        path: Path of the archive.

    Returns:
        Content of each JSON file, by path in the suite.
    """
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.name.endswith(".json")]
        return {member.name.removeprefix("./"): json.load(archive.extractfile(member)) for member in members}  # type: ignore[arg-type]


def read_folder(folder: Path) -> Files:
    """Read a checkout of the suite.

    Args:
        folder: Folder of the checkout, or its folder `tests`.

    Returns:
        Content of each JSON file, by path in the suite; empty if there are none.
    """
    files = {}
    for root in (folder / "tests", folder):
        for part in (*FOLDERS, "remotes"):
            for path in sorted((root / part).rglob("*.json")):
                files[str(path.relative_to(root))] = json.loads(path.read_bytes())
    return files


# -- verdicts ------------------------------------------------------------------------------------------------------


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """Return a vocabulary with one token per byte. It is the fastest one, and verdicts do not depend on it."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])


def accepts(fsm: TokenFSM, text: str) -> bool:
    """Return whether an automaton accepts a text.

    Args:
        fsm: An automaton that was compiled for `byte_vocabulary`.
        text: The text.
    """
    return fsm.is_terminal(state_after(fsm, text.encode("utf-8", "surrogatepass")))


def run(files: Files, drafts: Iterable[str] = FOLDERS) -> Iterator[Result]:
    """Run the suite.

    Args:
        files: Files of the suite, from `read_archive` or `read_folder`.
        drafts: Drafts to run, as folders of the suite, such as `draft7`.

    Yields:
        Result of each test.
    """
    remotes = {f"{REMOTES}{path.removeprefix('remotes/')}": schema for path, schema in files.items()
               if path.startswith("remotes/")}  # fmt: skip
    for draft in drafts:
        for path in sorted(path for path in files if path.startswith(f"{draft}/")):
            yield from _run_file(draft, path, files[path], remotes)


def _run_file(draft: str, path: str, groups: list[dict[str, Any]], remotes: Mapping[str, Any]) -> Iterator[Result]:
    checks_formats = "/format/" in path or path.endswith("format-assertion.json")
    options = GrammarOptions(
        format="assert" if checks_formats else "annotate", number_spelling="any", property_order="any"
    )
    for group in groups:
        schema = group["schema"]
        if isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": FOLDERS[draft], **schema}
        needed = remotes if REMOTES in json.dumps(schema) else {}
        fsm: TokenFSM | None = None
        refusal: str | None = None
        try:
            fsm = compile_grammar(
                {"type": "json_schema", "schema": schema}, byte_vocabulary(), options=options, resources=needed
            )
        except UnsatisfiableError:
            pass
        except GrammarError as error:
            refusal = str(error)
        for test in group["tests"]:
            name = f"{group['description']}: {test['description']}"
            if refusal is not None:
                yield Result(path, name, "refused", refusal)
                continue
            accepted = fsm is not None and accepts(fsm, json.dumps(test["data"], ensure_ascii=False))
            wrong = "wrongly accepted" if accepted else "wrongly rejected"
            yield Result(path, name, "right" if accepted == test["valid"] else wrong)


# -- the ratchet ---------------------------------------------------------------------------------------------------


def ratchet(results: Iterable[Result]) -> dict[str, dict[str, list[str]]]:
    """Return the content of the ratchet file: all tests that are not right.

    Args:
        results: Results of all tests.

    Returns:
        Names of tests, by file of the suite and by outcome.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.outcome != "right":
            found.setdefault(result.file, {}).setdefault(result.outcome, []).append(result.name)
    return found


def regressions(results: Iterable[Result], recorded: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    """Return the tests that are worse than in the ratchet file.

    A test is worse if it was right and is not right now, or if its schema was rejected and its verdict is wrong now.

    Args:
        results: Results of tests.
        recorded: Content of the ratchet file.

    Returns:
        One line per test, with its former and its present outcome.
    """
    worse = []
    for result in results:
        before = next((o for o, names in recorded.get(result.file, {}).items() if result.name in names), "right")
        if result.outcome not in ("right", before) and not (before != "right" and result.outcome == "refused"):
            worse.append(f"{result.file}: {result.name}: {before} -> {result.outcome} {result.reason}".rstrip())
    return worse


# -- tables --------------------------------------------------------------------------------------------------------


def table(results: Iterable[Result]) -> str:
    """Return a table of the outcomes: one line per file of the suite, with sums per draft.

    Args:
        results: Results of tests. Required and optional tests get separate sections.
    """
    counts: dict[tuple[str, bool], dict[str, collections.Counter[str]]] = {}
    for result in results:
        draft, file = result.file.split("/", 1)
        kind = counts.setdefault((draft, result.is_required), {})
        kind.setdefault(file.removesuffix(".json"), collections.Counter())[result.outcome] += 1
    lines = []
    head = f"{'':<44}" + "".join(f"{outcome:>18}" for outcome in ("tests", *OUTCOMES))
    for (draft, required), files in counts.items():
        lines += ["", f"{draft}, {'required' if required else 'optional'}", head]
        lines += [_row(f"  {file}", counter) for file, counter in files.items()]
        lines.append(_row("  all", sum(files.values(), collections.Counter())))
    return "\n".join(lines)


def _row(label: str, counter: collections.Counter[str]) -> str:
    return f"{label:<44}{counter.total():>18,}" + "".join(f"{counter[outcome]:>18,}" for outcome in OUTCOMES)


def main() -> int:
    """Run the suite and print the tables. Return 1 if a verdict is worse than recorded."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, default=None, help="a checkout of the suite (default: the copy kept here)")
    parser.add_argument("--draft", choices=[folder.removeprefix("draft") for folder in FOLDERS], default=None)
    parser.add_argument("--details", action="store_true", help="name every test that is not right, and why")
    parser.add_argument("--write", action="store_true", help="record the outcome in the ratchet file")
    arguments = parser.parse_args()
    files = read_archive() if arguments.data is None else read_folder(arguments.data)
    if not files:
        print(f"skipped: no JSON-Schema-Test-Suite in {arguments.data}")
        return 0
    drafts = [f"draft{arguments.draft}"] if arguments.draft else FOLDERS
    results = list(progress(run(files, drafts), "tests"))
    print(table(results))
    if arguments.details:
        for result in results:
            if result.outcome != "right":
                print(f"{result.outcome:<17} {result.file}: {result.name} {result.reason}")
    if arguments.write:
        if arguments.draft or arguments.data:
            parser.error("--write records all drafts of the copy kept here")
        RATCHET.write_text(json.dumps(ratchet(results), indent=1, ensure_ascii=False) + "\n")
        return 0
    worse = regressions(results, json.loads(RATCHET.read_text()))
    print("\n".join(["", f"worse than recorded: {len(worse)}", *worse]))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
