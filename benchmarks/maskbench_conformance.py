"""Is every verdict right? Schemas and instances of MaskBench, and random generations, against `jsonschema`.

    python -m benchmarks.maskbench_conformance --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT): `{"schema", "tests": [{"valid", "data"}]}`.
Each schema is compiled; its valid instances must be accepted as `json.dumps(..., ensure_ascii=False)` writes them, the
invalid ones rejected; and texts drawn at random from the masks, each ended by a shortest completion, must be valid.

A valid instance that is rejected is explained by code, not by hand: the policy counts as the reason only if the
instance is accepted once the option is changed, or once it is spelled as the policy asks. Exit status 1 when anything
invalid is accepted or generated, or when the compiler fails otherwise than by a typed refusal.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import decimal
import json
import random
import re
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from tqdm import tqdm

from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import named_vocabulary
from grammar_workers import GrammarError, GrammarOptions, TokenFSM, Vocabulary, compile_grammar, warm_up


@dataclasses.dataclass
class Report:
    """What was found. Each list names the file first."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rejected: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    accepted: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    invalid_walks: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    crashes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    slowest: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not (self.accepted or self.invalid_walks or self.crashes)


# -- stepping ------------------------------------------------------------------------------------------------------


def after(fsm: TokenFSM, state: int, text: str) -> int:
    """The state after `text`, -1 where it is forbidden."""
    for token in fsm.vocabulary.encode(text.encode("utf-8", "surrogatepass")) or [-1]:
        state = fsm.next_state(state, token)
    return state


def accepts(fsm: TokenFSM, text: str) -> bool:
    return fsm.is_terminal(after(fsm, fsm.initial_state, text))


def random_text(fsm: TokenFSM, rng: random.Random, longest: int) -> str:
    """Tokens drawn uniformly from the masks until one ends the text or `longest` are drawn, then a shortest end."""
    state = fsm.initial_state
    tokens: list[int] = []
    while len(tokens) < longest:
        allowed = np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        if token in fsm.vocabulary.eos_token_ids:
            break
        tokens.append(token)
        state = fsm.next_state(state, token)
    else:
        tokens += fsm.shortest_completion(state)
    return b"".join(map(fsm.vocabulary.token_bytes, tokens)).decode()


# -- explanations --------------------------------------------------------------------------------------------------


class Respelling:
    """Searches for a spelling of a value that the automaton accepts, within what one or more policies change."""

    def __init__(self, fsm: TokenFSM, *, any_order: bool, plain_numbers: bool) -> None:
        self._fsm = fsm
        self._any_order = any_order
        self._plain_numbers = plain_numbers
        self._known: dict[tuple[int, int], int] = {}

    def exists(self, value: Any) -> bool:
        return self._fsm.is_terminal(self._read(self._fsm.initial_state, value))

    def _read(self, state: int, value: Any) -> int:
        """The state after some spelling of `value`, -1 when none was found."""
        if isinstance(value, dict):
            # The same part of the instance (by identity) is met again after each possible predecessor.
            if (state, id(value)) not in self._known:
                self._known[state, id(value)] = self._read_object(after(self._fsm, state, "{"), value)
            return self._known[state, id(value)]
        if isinstance(value, list):
            state = after(self._fsm, state, "[")
            for position, item in enumerate(value):
                state = self._read(after(self._fsm, state, ", ") if position else state, item)
            return after(self._fsm, state, "]")
        return max(after(self._fsm, state, text) for text in self._scalars(value))

    def _read_object(self, state: int, value: dict[str, Any]) -> int:
        """Greedily: next comes the property after which the fewest others that could come now no longer can."""
        left = dict(value)
        separator = ""
        while left and state >= 0:
            possible = self._possible(state, left, separator)
            best, fewest = -1, len(left) + 1
            for name in [name for name in left if name in possible]:
                ended = self._read(after(self._fsm, state, f"{separator}{_name(name)}"), left[name])
                if ended >= 0:
                    lost = len(possible) - 1 - len(possible & self._possible(ended, left, ", ") - {name})
                    if lost < fewest:
                        best, fewest, chosen = ended, lost, name
                if not fewest:
                    break
            if best >= 0:
                del left[chosen]
            state, separator = best, ", "
        return after(self._fsm, state, "}")

    def _possible(self, state: int, left: dict[str, Any], separator: str) -> set[str]:
        """Which properties may come next."""
        names = left if self._any_order else list(left)[:1]
        return {name for name in names if after(self._fsm, state, f"{separator}{_name(name)}") >= 0}

    def _scalars(self, value: Any) -> list[str]:
        written = json.dumps(value, ensure_ascii=False)
        if not self._plain_numbers or not isinstance(value, float):
            return [written]
        plain = format(Decimal(written), "f")
        return [plain.rstrip("0").rstrip(".") if "." in plain else plain, plain, written]


def _name(name: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: "


POLICIES = {
    "property order": {"any_order": True, "plain_numbers": False},
    "number spelling": {"any_order": False, "plain_numbers": True},
    "property order and number spelling": {"any_order": True, "plain_numbers": True},
}


OPTIONS = {
    "property order": {"property_order": "any"},
    "number spelling": {"number_spelling": "any"},
    "property order and number spelling": {"property_order": "any", "number_spelling": "any"},
}


def explanation(fsm: TokenFSM, schema: Any, value: Any) -> str:
    """The policy under which a rejected value is accepted: as an option, or in another spelling."""
    for policy, changes in OPTIONS.items():
        with contextlib.suppress(GrammarError):
            specification = {"type": "json_schema", "schema": schema}
            lenient = compile_grammar(specification, fsm.vocabulary, options=GrammarOptions.model_validate(changes))
            if accepts(lenient, json.dumps(value, ensure_ascii=False)):
                return policy
    # Objects that keep the declared order under every option.
    for policy, allowed in POLICIES.items():
        if Respelling(fsm, **allowed).exists(value):
            return policy
    return "unexplained"


# -- one schema ----------------------------------------------------------------------------------------------------


def check(path: Path, vocabulary: Vocabulary, options: GrammarOptions, walks: int, report: Report) -> None:
    """Compile the schema of one file, and compare all verdicts."""
    case = json.loads(path.read_bytes())
    report.counts["schemas"] += 1
    begin = time.perf_counter()
    try:
        fsm = compile_grammar({"type": "json_schema", "schema": case["schema"]}, vocabulary, options=options)
    except GrammarError as error:
        report.refusals[f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', error.message)[:90]}"] += 1
        return
    except Exception as error:
        report.crashes.append((path.name, repr(error)[:200]))
        return
    finally:
        report.slowest.append((time.perf_counter() - begin, path.name))
    report.counts["compiled"] += 1
    before = len(report.rejected) + len(report.accepted)
    for number, test in enumerate(case["tests"]):
        verdict = accepts(fsm, json.dumps(test["data"], ensure_ascii=False))
        report.counts["valid instances" if test["valid"] else "invalid instances"] += 1
        if verdict and not test["valid"]:
            report.accepted.append((path.name, number))
        elif not verdict and test["valid"]:
            report.rejected.append((path.name, number, explanation(fsm, case["schema"], test["data"])))
    if case["tests"]:
        report.counts["compiled, with instances"] += 1
        report.counts["all verdicts right"] += len(report.rejected) + len(report.accepted) == before
    generate(path.name, case["schema"], fsm, walks, report)


def generate(name: str, schema: Any, fsm: TokenFSM, walks: int, report: Report) -> None:
    """Random texts against the validator, with exact decimals (binary rounding would blur bounds)."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = kind(exact, format_checker=kind.FORMAT_CHECKER)
    rng = random.Random(name)
    for _ in range(walks):
        text = random_text(fsm, rng, rng.randrange(1, 60))
        with decimal.localcontext(prec=400):
            error = next(iter(validator.iter_errors(json.loads(text, parse_float=Decimal))), None)
        report.counts["random generations"] += 1
        if error is not None:
            report.invalid_walks.append((name, text[:200], error.message[:200]))


# -- the whole -----------------------------------------------------------------------------------------------------


def show(report: Report) -> None:
    counts = report.counts
    rows = [
        ("schemas", counts["schemas"]),
        ("compiled", counts["compiled"]),
        ("refused", sum(report.refusals.values())),
        ("CRASHED", len(report.crashes)),
        ("compiled, with instances", counts["compiled, with instances"]),
        ("  every verdict right", counts["all verdicts right"]),
        ("valid instances", counts["valid instances"]),
        ("  rejected", len(report.rejected)),
        *((f"    {reason}", n) for reason, n in collections.Counter(r for _, _, r in report.rejected).most_common()),
        ("invalid instances", counts["invalid instances"]),
        ("  ACCEPTED", len(report.accepted)),
        ("random generations", counts["random generations"]),
        ("  INVALID", len(report.invalid_walks)),
    ]
    for label, number in rows:
        print(f"{label:<45}{number:>8,}")
    sections: list[tuple[str, list[str]]] = [
        ("refusals by reason", [f"{many:>6}  {reason}" for reason, many in report.refusals.most_common()]),
        ("valid, but rejected", [f"{reason:<36}{name} #{number}" for name, number, reason in report.rejected]),
        ("invalid, but ACCEPTED", [f"{name} #{number}" for name, number in report.accepted]),
        ("INVALID generations", [f"{name}: {text}\n      {error}" for name, text, error in report.invalid_walks]),
        ("CRASHES", [f"{name}: {error}" for name, error in report.crashes]),
        ("slowest compilations", [f"{seconds:>8.2f} s  {name}" for seconds, name in sorted(report.slowest)[:-6:-1]]),
    ]
    for title, lines in sections:
        if lines:
            print(f"\n{title}")
            print("\n".join(f"  {line}" for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=5, help="random generations per schema (default 5)")
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model (default tekken)")
    parser.add_argument("--property-order", choices=("declared", "any"), default="declared", help="default declared")
    parser.add_argument("--limit", type=int, default=None, help="only the first so many files")
    arguments = parse_with_data(parser)
    paths = sorted(arguments.data.glob("*.json"))[: arguments.limit]
    vocabulary = named_vocabulary(arguments.vocabulary)
    warm_up(vocabulary)
    report = Report()
    options = GrammarOptions(property_order=arguments.property_order)
    for path in tqdm(paths, unit="schema", smoothing=0.05):
        check(path, vocabulary, options, arguments.walks, report)
    show(report)
    return 0 if report.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
