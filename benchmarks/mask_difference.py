"""Compare the masks of Turnstile and other libraries along common texts, and find the library that is wrong.

    python -m benchmarks.mask_difference --data FOLDER

All engines (Turnstile and the other libraries) compile each schema for one serialization of JSON: the separators `", "`
and `": "`, minimal escapes, properties in the declared order. A text is sampled from the tokens that all engines allow.
If the masks differ in a state, a token that only some engines allow is completed to a text by one of these engines. If
only some engines allow the text to end, the text is used as it is. `jsonschema` decides if each text is valid. Then
every engine reads the text in three tokenizations: the sampled tokens, the tokens of the tokenizer, and single bytes.
The errors of an engine are:

    under   it accepts an invalid text, in one of the tokenizations
    over    it accepts a valid text with the agreed serialization and order in none of the tokenizations

Per schema, there are at most MOST_TEXTS texts and MOST_TRIES attempts to complete a text, so that a schema takes some
seconds. Further differences are counted as given up.

A difference is *undecided* in three cases: no complete text was found; the text repeats a property name, or has another
serialization or order; or the validity depends on `format`, which is only an annotation in the JSON Schema
specification.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import random
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
from numpy.typing import NDArray

from benchmarks.child import Child, ChildFailedError
from benchmarks.engines import ENGINES, Engine, RefusedError, Session, installed
from benchmarks.frame import Table, add_sample, chosen, new_parser, progress
from benchmarks.maskbench_conformance import accepts, explanation
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import GrammarError, TokenFSM, compile_grammar

TIMEOUT_S = 30
WALKS, STEPS = 2, 40
# Maximum number of texts per schema that are made from differences.
MOST_TEXTS = 8
# Maximum number of attempts per schema to complete a text. A failed attempt may take LONGEST masks.
MOST_TRIES = 24
# Maximum number of tokens that complete a text.
LONGEST = 150
# Tokens that lead to the end of a text, in order of preference. In a string (where letters are allowed): its quote.
CLOSING = [b"}", b"]", b'"', b"0"]

Verdict = Literal["valid", "invalid", "undecided"]


@dataclasses.dataclass
class Finding:
    """Results for one schema.

    Attributes:
        name: File name.
        engines: Names of the engines that have compiled the schema.
        masks: Number of states whose masks were compared.
        differing: Number of states where masks or ends differ.
        undecided: Number of differences without a verdict.
        given_up: Number of differences beyond MOST_TRIES.
        over: Valid texts that an engine rejects, by name of the engine.
        under: Invalid texts that an engine accepts, by name of the engine.
        crash: Error of a crash or timeout; empty if there was none.
    """

    name: str
    engines: list[str] = dataclasses.field(default_factory=list)
    masks: int = 0
    differing: int = 0
    undecided: int = 0
    given_up: int = 0
    over: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    under: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    crash: str = ""


class Judge:
    """Callable that decides with `jsonschema` if a text is valid. It also checks the serialization of the text.

    Args:
        schema: The JSON Schema.
    """

    def __init__(self, schema: Any) -> None:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        self._loose = kind(schema)
        self._strict = kind(schema, format_checker=kind.FORMAT_CHECKER)
        self._schema = schema
        self._ours: TokenFSM | None = None
        with contextlib.suppress(GrammarError):
            self._ours = compile_grammar({"type": "json_schema", "schema": schema}, tekken_vocabulary())

    def __call__(self, text: str) -> Verdict:
        """Return the verdict on a text: "valid", "invalid" or "undecided".

        "undecided" means that `jsonschema` gives no certain verdict, or that the text does not have the agreed
        serialization, so the engines may differ.
        """
        try:
            value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
        except _RepeatedError:
            return "undecided"
        except ValueError:
            return "invalid"
        try:
            if not self._loose.is_valid(value):
                return "invalid"
            if not self._strict.is_valid(value):
                return "undecided"
        except Exception:  # references that lead nowhere, patterns that Python cannot read
            return "undecided"
        if json.dumps(value, ensure_ascii=False) != text:
            return "undecided"
        if self._ours is None:
            return "undecided"
        # Another order than the declared one, or 1.0 for 1, is not agreed.
        agreed = accepts(self._ours, text) or explanation(self._ours, self._schema, value) == "unexplained"
        return "valid" if agreed else "undecided"


class _RepeatedError(Exception):
    """Error for a name that occurs twice in an object."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedError
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Walker:
    """Samples texts under one schema, and compares all engines that have compiled it.

    Args:
        sessions: Session of each engine, by name.
        judge: Decides if a text is valid.
        finding: Results for the schema, which are updated.
        rng: Source of random numbers.
    """

    def __init__(self, sessions: dict[str, Session], judge: Judge, finding: Finding, rng: random.Random) -> None:
        vocabulary = tekken_vocabulary()
        self._tokens = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        self._text = np.array([bool(token) for token in self._tokens])
        self._closing = [self._tokens.index(one) for one in CLOSING]
        self._bytes = [self._tokens.index(bytes([byte])) for byte in range(256)]
        self._quote, self._letter = self._tokens.index(b'"'), self._tokens.index(b"a")
        self._sessions = sessions
        self._judge = judge
        self._finding = finding
        self._rng = rng
        self._seen: set[bytes] = set()
        self._tries = 0

    def walk(self) -> None:
        """Sample one text, and compare the masks of all engines in each state. Judge texts that differences lead to."""
        path: list[int] = []
        for session in self._sessions.values():
            session.begin()
        for _ in range(STEPS):
            masks = {name: self._mask(session) for name, session in self._sessions.items()}
            stops = {name: session.may_stop() for name, session in self._sessions.items()}
            self._finding.masks += 1
            common = np.logical_and.reduce(list(masks.values()))
            some = np.logical_or.reduce(list(masks.values())) & ~common
            if some.any() or len(set(stops.values())) > 1:
                self._finding.differing += 1
                self._follow(path, masks, some, len(set(stops.values())) > 1)
                self._replay(path)
            if (all(stops.values()) and self._rng.random() < 0.5) or not common.any():
                return
            path.append(self._draw(common, 0.5))
            for session in self._sessions.values():
                session.advance(path[-1])

    def _mask(self, session: Session) -> NDArray[np.bool_]:
        bits = np.unpackbits(session.mask().view(np.uint8), bitorder="little")[: len(self._tokens)]
        return bits.astype(np.bool_) & self._text

    def _draw(self, allowed: NDArray[np.bool_], hurry: float) -> int:
        """Return a random allowed token; with the probability `hurry`, one that leads to the end of the text."""
        if self._rng.random() < hurry:
            closing = [self._quote] if allowed[self._letter] else self._closing
            for token in closing:
                if allowed[token]:
                    return token
        return int(self._rng.choice(np.flatnonzero(allowed).tolist()))

    def _replay(self, path: list[int]) -> None:
        for session in self._sessions.values():
            session.begin()
            for token in path:
                session.advance(token)

    def _follow(self, path: list[int], masks: dict[str, Any], some: NDArray[np.bool_], differ: bool) -> None:
        """Make texts that pass through a difference, and judge them."""
        if len(self._seen) >= MOST_TEXTS:
            return
        if differ:
            self._read(path)
        for name, mask in masks.items():
            only = np.flatnonzero(mask & some)
            if not only.size:
                continue
            if self._tries >= MOST_TRIES:
                self._finding.given_up += 1
                continue
            token = int(self._rng.choice(only.tolist()))
            for _ in range(3):
                self._tries += 1
                if (found := self._complete(self._sessions[name], [*path, token])) is not None:
                    self._read(found)
                    break
            else:
                self._finding.undecided += 1

    def _complete(self, session: Session, path: list[int]) -> list[int] | None:
        session.begin()
        path = list(path)
        if not all(session.advance(token) for token in path):
            return None
        for _ in range(LONGEST):
            if session.may_stop():
                return path
            mask = self._mask(session)
            if not mask.any():
                return None
            path.append(self._draw(mask, 0.85))
            if not session.advance(path[-1]):
                return None
        return None

    def _read(self, path: list[int]) -> None:
        data = b"".join(self._tokens[token] for token in path)
        if data in self._seen:
            return
        self._seen.add(data)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        verdict = "invalid" if text is None else self._judge(text)
        if verdict == "undecided":
            self._finding.undecided += 1
            return
        # An engine may insist on the tokeniser's own tokens: that is no error of its language.
        spellings = [path, [self._bytes[byte] for byte in data]]
        if text is not None:
            spellings.append(tekken_encoding().encode(text, disallowed_special=()))
        for name, session in self._sessions.items():
            accepted = any(_reads(session, tokens) for tokens in spellings)
            if accepted != (verdict == "valid"):
                where = self._finding.under if accepted else self._finding.over
                where.setdefault(name, []).append(data.decode(errors="replace"))


def _reads(session: Session, tokens: list[int]) -> bool:
    session.begin()
    return all(session.advance(token) for token in tokens) and session.may_stop()


def compare(engines: dict[str, Engine], path: Path) -> Finding:
    """Compare all engines on the schema of one file.

    Args:
        engines: The engines, by name.
        path: A MaskBench file.

    Returns:
        The results.
    """
    schema = json.loads(path.read_bytes())["schema"]
    finding = Finding(path.name)
    sessions: dict[str, Session] = {}
    for name, engine in engines.items():
        with contextlib.suppress(RefusedError):
            sessions[name] = engine.compile(schema)
    finding.engines = list(sessions)
    if len(sessions) > 1:
        walker = Walker(sessions, Judge(schema), finding, random.Random(path.name))
        for _ in range(WALKS):
            walker.walk()
    return finding


def serve(names: list[str], connection: Connection) -> None:
    """Receive paths of MaskBench files, and send a `Finding` for each of them. A child process runs this function.

    Args:
        names: Names of the engines.
        connection: Connection to the main process. The function returns when it receives None.
    """
    engines = {name: ENGINES[name]({"comparable": True} if name == "xgrammar" else {}) for name in names}
    connection.send(None)
    while (path := connection.recv()) is not None:
        try:
            finding = compare(engines, path)
        except Exception as error:
            finding = Finding(path.name, crash=repr(error)[:200])
        connection.send(finding)


def show(findings: list[Finding], names: list[str], listed: int) -> None:
    """Print a table of the results, and examples of texts.

    Args:
        findings: Results for all schemas.
        names: Names of the engines.
        listed: Maximum number of texts that are printed for each engine and kind of error.
    """
    compared = [finding for finding in findings if len(finding.engines) > 1]
    crashes = collections.Counter(finding.crash for finding in findings if finding.crash)
    print(f"\nschemas compared: {len(compared):,} of {len(findings):,}", end="; ")
    print(f"crashed, or given up after {TIMEOUT_S} s: {crashes.total()}")
    print(f"masks compared: {sum(f.masks for f in compared):,}; differing: {sum(f.differing for f in compared):,}")
    print(f"differences undecided: {sum(f.undecided for f in compared):,}", end="; ")
    print(f"given up after {MOST_TRIES} attempts: {sum(f.given_up for f in compared):,}\n")
    table = Table("engine", "compiled", "over: schemas", "texts", "under: schemas", "texts")
    examples: list[str] = []
    for name in names:
        cells = [name, sum(name in finding.engines for finding in compared)]
        for which in ("over", "under"):
            found = {finding.name: texts for finding in compared if (texts := getattr(finding, which).get(name))}
            cells += [len(found), sum(map(len, found.values()))]
            examples += [f"{name} {which}: {file}: {texts[0][:150]!a}" for file, texts in list(found.items())[:listed]]
        table.row(*cells)
    print("\n".join(examples))
    for failure, many in crashes.most_common(5):
        print(f"crashed: {many} x {failure}")


def main() -> int:
    """Compare the masks, and print the table. Return 1 if Turnstile wrongly accepts or rejects a text."""
    parser = new_parser(__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    add_sample(parser)
    parser.add_argument("--listed", type=int, default=5, help="texts to list of each engine and kind (default 5)")
    arguments = parse_with_data(parser)
    names = installed(arguments.engines)
    child = Child(serve, names, timeout_s=TIMEOUT_S)
    findings = []
    for path in progress(chosen(arguments.data, arguments.sample), "schemas"):
        try:
            findings.append(child.ask(path))
        except ChildFailedError as error:
            findings.append(Finding(path.name, crash=str(error)))
    child.close()
    show(findings, names, arguments.listed)
    return int(any("turnstile" in {**finding.over, **finding.under} for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
