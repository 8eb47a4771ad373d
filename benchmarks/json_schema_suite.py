"""The official JSON-Schema-Test-Suite, every draft: which verdicts are right, and which schemas are refused.

    python -m benchmarks.json_schema_suite [--data FOLDER] [--draft 2020-12] [--details] [--write]

FOLDER is a checkout of json-schema-org/JSON-Schema-Test-Suite (its `tests`, with `remotes` inside or beside it); the
copy in tests/data serves without it. Each schema is compiled, and each instance is read as
`json.dumps(..., ensure_ascii=False)` writes it, with properties in any order and 1.0 for an integer allowed. A verdict
is *right*, *refused* (a typed error, no automaton), *wrongly accepted* or *wrongly rejected*. A schema that nothing
satisfies has no automaton either, but a verdict: every instance is invalid.

`--write` records every test that is not right in the ratchet file; the test suite fails on any change for the worse.
Exit status 1 when anything is worse than the ratchet file says.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grammar_workers import GrammarError, GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.json_schema.read.keywords import DRAFTS

_HOME = Path(__file__).parents[1] / "tests"
ARCHIVE = _HOME / "data" / "json-schema-test-suite" / "suite.tar.xz"
RATCHET = _HOME / "grammar_workers" / "json_schema_suite.json"
REMOTES = "http://localhost:1234/"
"""Where the suite says that its remote schemas are."""
FOLDERS = dict(zip(["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"], DRAFTS, strict=True))
"""Folder of the suite -> the meta-schema of its draft."""
OUTCOMES = ("right", "refused", "wrongly accepted", "wrongly rejected")

Files = Mapping[str, Any]
"""Path inside the suite -> its JSON."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One test of the suite: `file` like `draft7/optional/format/date.json`, and what came of it."""

    file: str
    name: str
    outcome: str
    reason: str = ""

    @property
    def is_required(self) -> bool:
        return "/optional/" not in self.file


# -- the files -----------------------------------------------------------------------------------------------------


def read_archive(path: Path = ARCHIVE) -> Files:
    """The suite as it is kept in this repository."""
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.name.endswith(".json")]
        return {member.name.removeprefix("./"): json.load(archive.extractfile(member)) for member in members}  # type: ignore[arg-type]


def read_folder(folder: Path) -> Files:
    """The suite as its project keeps it."""
    files = {}
    for root in (folder / "tests", folder):
        for part in (*FOLDERS, "remotes"):
            for path in sorted((root / part).rglob("*.json")):
                files[str(path.relative_to(root))] = json.loads(path.read_bytes())
    return files


# -- verdicts ------------------------------------------------------------------------------------------------------


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """One token per byte: verdicts do not depend on the vocabulary, and this one is the quickest."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])


def accepts(fsm: TokenFSM, text: str) -> bool:
    state = fsm.initial_state
    for token in text.encode("utf-8", "surrogatepass"):
        state = fsm.next_state(state, token)
    return fsm.is_terminal(state)


def run(files: Files, drafts: Iterable[str] = FOLDERS) -> Iterator[Result]:
    """Every test of the given drafts (folders of the suite)."""
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
    """file -> outcome -> the tests that are not right."""
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.outcome != "right":
            found.setdefault(result.file, {}).setdefault(result.outcome, []).append(result.name)
    return found


def regressions(results: Iterable[Result], recorded: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    """What is worse than recorded: a test that was right, or a refusal that has become a wrong verdict."""
    worse = []
    for result in results:
        before = next((o for o, names in recorded.get(result.file, {}).items() if result.name in names), "right")
        if result.outcome not in ("right", before) and not (before != "right" and result.outcome == "refused"):
            worse.append(f"{result.file}: {result.name}: {before} -> {result.outcome} {result.reason}".rstrip())
    return worse


# -- tables --------------------------------------------------------------------------------------------------------


def table(results: Iterable[Result]) -> str:
    """Counts per keyword (file of the suite), required ones first, and sums per draft."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    results = list(tqdm(run(files, drafts), unit="test", smoothing=0.05))
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
