"""Masks of Turnstile and its peers compared token by token along the same walks, and who errs where they differ.

    python -m benchmarks.mask_difference --data FOLDER

Each schema is compiled by all engines with one spelling of JSON (`", "` and `": "`, minimal escapes, declared order).
A walk draws tokens that all of them allow. Where masks differ, a token that only some allow is followed to a complete
text by an engine that allows it; where only some let a text end, that is the text. `jsonschema` judges each text once,
and then every engine reads it, in the tokens of the walk, in those of the tokeniser, and byte by byte:

    under   a text that is invalid is accepted in one of these
    over    a text that is valid, and spelt and ordered as agreed, is accepted in none

At most MOST_TEXTS texts and MOST_TRIES attempts to complete one are made at a schema, so that it takes seconds; the
differences that are not followed after as many attempts are counted as given up.

Undecided: no complete text was found; the text repeats a name, is spelt or ordered otherwise, or `format` alone decides
(the specification calls it an annotation).
"""

from __future__ import annotations

import argparse
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
from tqdm import tqdm

from benchmarks.child import Child, ChildFailedError
from benchmarks.engines import ENGINES, Engine, RefusedError, Session, installed
from benchmarks.maskbench_conformance import accepts, explanation
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import GrammarError, TokenFSM, compile_grammar

TIMEOUT_S = 30
WALKS, STEPS = 2, 40
MOST_TEXTS = 8
"""Differences of one schema that are followed to a text."""
MOST_TRIES = 24
"""Attempts to complete a text at one schema: where an engine leads nowhere, each takes LONGEST masks."""
LONGEST = 150
"""Tokens that complete a text."""
CLOSING = [b"}", b"]", b'"', b"0"]
"""What leads to the end of a text, the first that is allowed; in a string, where letters are, its end."""

Verdict = Literal["valid", "invalid", "undecided"]


@dataclasses.dataclass
class Finding:
    """What was found at one schema; texts by engine."""

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
    """What `jsonschema` says about texts, and whether they are spelt as agreed."""

    def __init__(self, schema: Any) -> None:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        self._loose = kind(schema)
        self._strict = kind(schema, format_checker=kind.FORMAT_CHECKER)
        self._schema = schema
        self._ours: TokenFSM | None = None
        with contextlib.suppress(GrammarError):
            self._ours = compile_grammar({"type": "json_schema", "schema": schema}, tekken_vocabulary())

    def __call__(self, text: str) -> Verdict:
        """`undecided` where the judge cannot tell, or the engines need not agree."""
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
    """A name stands twice in an object."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedError
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Walker:
    """Walks under one schema with all engines that compile it."""

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
        """One walk, whose differences are followed as long as there is room for texts."""
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
            if all(stops.values()) and self._rng.random() < 0.5:
                return
            if not common.any():
                return
            path.append(self._draw(common, 0.5))
            for session in self._sessions.values():
                session.advance(path[-1])

    def _mask(self, session: Session) -> NDArray[np.bool_]:
        bits = np.unpackbits(session.mask().view(np.uint8), bitorder="little")[: len(self._tokens)]
        return bits.astype(np.bool_) & self._text

    def _draw(self, allowed: NDArray[np.bool_], hurry: float) -> int:
        """One of these tokens; with the probability `hurry` one that leads to an end."""
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
        """Texts that lead through a difference, judged."""
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
    """All engines at one schema."""
    schema = json.loads(path.read_bytes())["schema"]
    finding = Finding(path.name)
    sessions: dict[str, Session] = {}
    for name, engine in engines.items():
        try:
            sessions[name] = engine.compile(schema)
        except RefusedError:
            continue
    finding.engines = list(sessions)
    if len(sessions) > 1:
        walker = Walker(sessions, Judge(schema), finding, random.Random(path.name))
        for _ in range(WALKS):
            walker.walk()
    return finding


def serve(names: list[str], connection: Connection) -> None:
    """Answer paths with findings, until None."""
    engines = {name: ENGINES[name]({"comparable": True} if name == "xgrammar" else {}) for name in names}
    connection.send(None)
    while (path := connection.recv()) is not None:
        try:
            finding = compare(engines, path)
        except Exception as error:
            finding = Finding(path.name, crash=repr(error)[:200])
        connection.send(finding)


def show(findings: list[Finding], names: list[str], listed: int) -> None:
    """The table, and some texts of each engine."""
    compared = [finding for finding in findings if len(finding.engines) > 1]
    crashes = collections.Counter(finding.crash for finding in findings if finding.crash)
    late = sum(number for crash, number in crashes.items() if crash.startswith("no answer"))
    print(f"\nschemas compared: {len(compared):,} of {len(findings):,}", end="; ")
    print(f"crashed: {crashes.total() - late}; given up after {TIMEOUT_S} s: {late}")
    print(f"masks compared: {sum(f.masks for f in compared):,}; differing: {sum(f.differing for f in compared):,}")
    print(f"differences undecided: {sum(f.undecided for f in compared):,}", end="; ")
    print(f"given up after {MOST_TRIES} attempts: {sum(f.given_up for f in compared):,}\n")
    print(f"{'':<14}{'compiled':>10}{'over: schemas':>16}{'texts':>8}{'under: schemas':>16}{'texts':>8}")
    for name in names:
        many = sum(name in finding.engines for finding in compared)
        figures = [many]
        for which in ("over", "under"):
            texts = [getattr(finding, which)[name] for finding in compared if name in getattr(finding, which)]
            figures += [len(texts), sum(map(len, texts))]
        print(
            f"{name:<14}" + "".join(f"{one:>{width},}" for one, width in zip(figures, (10, 16, 8, 16, 8), strict=True))
        )
    for which in ("over", "under"):
        for name in names:
            shown = [finding for finding in compared if name in getattr(finding, which)][:listed]
            for finding in shown:
                print(f"{name} {which}: {finding.name}: {getattr(finding, which)[name][0][:150]!a}")
    for failure, many in crashes.most_common(5):
        print(f"crashed: {many} x {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    parser.add_argument("--sample", type=int, default=None, help="so many files, drawn by a fixed seed")
    parser.add_argument("--listed", type=int, default=5, help="texts to list of each engine and kind (default 5)")
    arguments = parse_with_data(parser)
    paths = sorted(arguments.data.glob("*.json"))
    if arguments.sample is not None:
        paths = sorted(random.Random(0).sample(paths, min(arguments.sample, len(paths))))
    names = installed(arguments.engines)
    child = Child(serve, names, timeout_s=TIMEOUT_S)
    findings = []
    for path in tqdm(paths, unit="schema", smoothing=0.05):
        try:
            findings.append(child.ask(path))
        except ChildFailedError as error:
            findings.append(Finding(path.name, crash=str(error)))
    child.close()
    show(findings, names, arguments.listed)
    return int(any("turnstile" in {**finding.over, **finding.under} for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
