"""Compare all verdicts with `jsonschema`: on schemas and instances of MaskBench, and on randomly sampled texts.

    python -m benchmarks.maskbench_conformance --data FOLDER

FOLDER contains the files of MaskBench (guidance-ai/jsonschemabench, MIT): `{"schema", "tests": [{"valid", "data"}]}`.
Each schema is compiled. The automaton must accept its valid instances, as `json.dumps(..., ensure_ascii=False)`
serializes them, and must reject its invalid instances. Texts that are sampled from the masks, and then completed by the
shortest completion, must be valid.

The program explains each valid instance that is rejected by a *policy*, such as the declared order of properties. A
policy is the reason if the instance is accepted with another option, or in the serialization that the policy requires.
The exit status is 1 if an invalid text is accepted or generated, or if the compiler fails with an untyped error.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import random
import re
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks.frame import new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.soundness import schema_judge
from benchmarks.texts import random_tokens, state_after, text_of
from benchmarks.vocabularies import named_vocabulary
from grammar_workers import GrammarError, GrammarOptions, TokenFSM, Vocabulary, compile_grammar, warm_up


@dataclasses.dataclass
class Report:
    """Results for all files.

    Attributes:
        counts: Numbers of schemas, instances and texts, by label.
        refusals: Numbers of rejected schemas, by error.
        rejected: Valid instances that were rejected: (file name, index of the instance, policy).
        accepted: Invalid instances that were accepted: (file name, index of the instance).
        invalid_walks: Invalid texts that were sampled: (file name, text, error).
        crashes: Untyped errors of the compiler: (file name, error).
        slowest: Times of all compilations: (seconds, file name).
    """

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rejected: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    accepted: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    invalid_walks: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    crashes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    slowest: list[tuple[float, str]] = dataclasses.field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """True if no invalid text was accepted or generated, and nothing has crashed."""
        return not (self.accepted or self.invalid_walks or self.crashes)


# -- stepping ------------------------------------------------------------------------------------------------------


def after(fsm: TokenFSM, state: int, text: str) -> int:
    """Return the state after a text; -1 if the text is disallowed.

    Args:
        fsm: The automaton.
        state: State before the text, or -1.
        text: The text.
    """
    return state_after(fsm, fsm.vocabulary.encode(text.encode("utf-8", "surrogatepass")) or [-1], state)


def accepts(fsm: TokenFSM, text: str) -> bool:
    """Return whether an automaton accepts a text.

    Args:
        fsm: The automaton.
        text: The text.
    """
    return fsm.is_terminal(after(fsm, fsm.initial_state, text))


# -- explanations --------------------------------------------------------------------------------------------------


class Respelling:
    """Searches for a serialization of a JSON value that an automaton accepts.

    Args:
        fsm: The automaton.
        changed: Properties of the serialization that may vary: `property_order`, `number_spelling` or both.
    """

    def __init__(self, fsm: TokenFSM, changed: list[str]) -> None:
        self._fsm = fsm
        self._any_order = "property_order" in changed
        self._plain_numbers = "number_spelling" in changed
        self._known: dict[tuple[int, int], int] = {}

    def exists(self, value: Any) -> bool:
        """Return whether the search finds a serialization of `value` that the automaton accepts."""
        return self._fsm.is_terminal(self._read(self._fsm.initial_state, value))

    def _read(self, state: int, value: Any) -> int:
        """Return the state after some serialization of `value`, -1 if none was found."""
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
        """Choose properties greedily: next comes the one that makes the fewest other possible properties impossible."""
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
        """Return the properties that may come next."""
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


# Policy -> the grammar options that it sets to "any".
POLICIES = {
    "property order": ["property_order"],
    "number spelling": ["number_spelling"],
    "property order and number spelling": ["property_order", "number_spelling"],
}


def explanation(fsm: TokenFSM, schema: Any, value: Any) -> str:
    """Return the policy because of which an automaton rejects a valid value, such as "property order".

    Args:
        fsm: The automaton, which rejects the value.
        schema: The JSON Schema of the automaton.
        value: The value, which is valid.

    Returns:
        A key of `POLICIES`; "unexplained" if no policy is the reason.
    """
    for policy, changed in POLICIES.items():
        with contextlib.suppress(GrammarError):
            specification = {"type": "json_schema", "schema": schema}
            options = GrammarOptions.model_validate(dict.fromkeys(changed, "any"))
            lenient = compile_grammar(specification, fsm.vocabulary, options=options)
            if accepts(lenient, json.dumps(value, ensure_ascii=False)):
                return policy
    # Objects that keep the declared order under every option.
    for policy, changed in POLICIES.items():
        if Respelling(fsm, changed).exists(value):
            return policy
    return "unexplained"


# -- one schema ----------------------------------------------------------------------------------------------------


def check(path: Path, vocabulary: Vocabulary, options: GrammarOptions, walks: int, report: Report) -> None:
    """Compile the schema of one file, and compare all verdicts with `jsonschema`.

    Args:
        path: A MaskBench file.
        vocabulary: Vocabulary of the automaton.
        options: Options of the grammar.
        walks: Number of texts to sample from the masks.
        report: Results, which are updated.
    """
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
    """Sample texts from the masks, and check with `jsonschema` that they are valid.

    Args:
        name: File name.
        schema: The JSON Schema.
        fsm: Its automaton.
        walks: Number of texts.
        report: Results, which are updated.
    """
    judge, rng = schema_judge(schema), random.Random(name)
    for _ in range(walks):
        text = text_of(fsm, random_tokens(fsm, rng, rng.randrange(1, 60)))
        report.counts["random generations"] += 1
        if (wrong := judge(text)) is not None:
            report.invalid_walks.append((name, text[:200], wrong[:200]))


# -- the whole -----------------------------------------------------------------------------------------------------


def show(report: Report) -> None:
    """Print the counts, then all errors with file names.

    Args:
        report: Results for all files.
    """
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
    """Check the files. Return 1 if the report is not sound."""
    parser = new_parser(__doc__)
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
    for path in progress(paths, "schemas"):
        check(path, vocabulary, options, arguments.walks, report)
    show(report)
    return 0 if report.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
