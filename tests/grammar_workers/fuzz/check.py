"""Check one case: walks, values, near misses and mutations of texts, each put to the laws."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import signal
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from grammar_workers.errors import UnsatisfiableError
from tests.grammar_workers.fuzz.cases import Case, Draw, Subject, draw
from tests.grammar_workers.fuzz.laws import LAWS, Witness, is_accepted
from tests.grammar_workers.fuzz.spelling import many_orders
from tests.grammar_workers.fuzz.walks import Walker, text_of

CPU_SECONDS = 20.0
"""What a case may take. Most take milliseconds; 32 completions of an automaton of `\\p{L}` take 3 s on an idle core."""
_TICK_S = 0.1
_WALKS = 8
_STATES = 8
_MUTATIONS = 24
_MOST_ORDERS = 24


@dataclasses.dataclass(frozen=True)
class Failure:
    """A law that a case breaks with a witness, and what was found. `seed` draws the case again."""

    law: str
    case: Case
    witness: Witness
    message: str
    seed: str = ""


Counts = collections.Counter[str]


class TimeIsUpError(BaseException):
    """A case took too much CPU time. No `Exception`, so that nobody catches it."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises TimeIsUpError in the main thread after so many seconds of CPU time; compiled loops end first."""

    def stop(_: int, frame: FrameType | None) -> None:
        # What is raised in a callback of the garbage collector (`hypothesis` has one) is lost: the next tick raises.
        if frame is None or "gc_" not in frame.f_code.co_name:
            signal.setitimer(signal.ITIMER_PROF, 0)
            raise TimeIsUpError(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, _TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check_seed(seed: str, counts: Counts) -> list[Failure]:
    """The case that `seed` draws."""
    rng = random.Random(seed)
    drawn = draw(rng)
    failures = list(check(drawn, rng, counts))
    return [dataclasses.replace(failure, seed=seed) for failure in failures]


def check(drawn: Draw, rng: random.Random, counts: Counts) -> list[Failure]:
    """All that is wrong with a case, at most one failure per law."""
    round_ = _Round(drawn, rng, counts)
    begin = time.process_time()
    try:
        with cpu_limit(CPU_SECONDS):
            round_.run()
    except (Exception, TimeIsUpError) as error:
        if _is_the_judges(error, round_.subject, CPU_SECONDS):
            counts["cut short by a judge that takes too long"] += 1
        else:
            round_.fail(*round_.doing, _said(error))
    counts["CPU milliseconds"] += int(1000 * (time.process_time() - begin))
    return list(round_.failures.values())


def examine(law: str, case: Case, witness: Witness, seconds: float = CPU_SECONDS) -> str | None:
    """How a case breaks a law, None when it does not."""
    subject = None
    try:
        with cpu_limit(seconds):
            subject = Subject(case)
            return LAWS[law](subject, witness)
    except (Exception, TimeIsUpError) as error:
        return None if _is_the_judges(error, subject, seconds) else _said(error)


def _is_the_judges(error: BaseException, subject: Subject | None, seconds: float) -> bool:
    """Whether `seconds` are up because of the judge, as patterns read by backtracking take, wherever it was noticed."""
    return isinstance(error, TimeIsUpError) and subject is not None and subject.judging_s > seconds / 2


def _said(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "grammar_workers" in f.filename]
    place = f"{frames[-1].filename.rpartition('/')[2]} {frames[-1].name}" if frames else "nowhere"
    return f"{type(error).__name__}: in {place}, {error}"[:400]


class _Round:
    """One case."""

    def __init__(self, drawn: Draw, rng: random.Random, counts: Counts) -> None:
        self._drawn = drawn
        self._rng = rng
        self._counts = counts
        self.subject: Subject | None = None
        """None until the case has been compiled."""
        self.failures: dict[str, Failure] = {}
        self.doing: tuple[str, Witness] = ("compiles", None)

    def fail(self, law: str, witness: Witness, message: str) -> None:
        self.failures.setdefault(law, Failure(law, self._drawn.case, witness, message))

    def run(self) -> None:
        case = self._drawn.case
        self._counts[f"specifications: {case.specification['type']}"] += 1
        for name, value in case.options.items():
            self._counts[f"options: {name} {value}"] += 1
        self.subject = self._subject = subject = Subject(case)
        if subject.refusal is not None:
            self._counts[f"refused: {subject.refusal.code}"] += 1
            if not isinstance(subject.refusal, UnsatisfiableError):
                return
        if subject.fsm is not None:
            self._walks()
        self._values()
        self._mutations()
        if self._rng.random() < 0.2:
            self._small()

    def _ask(self, law: str, witness: Witness) -> bool:
        """Whether the law holds."""
        self.doing = law, witness
        self._counts[f"law: {law}"] += 1
        try:
            found = LAWS[law](self._subject, witness)
        except Exception as error:
            found = _said(error)
        if found is not None:
            self.fail(law, witness, found)
        return found is None

    # -- under the masks -----------------------------------------------------------------------------------------------

    def _walks(self) -> None:
        fsm = self._subject.fsm
        assert fsm is not None
        walker = Walker(fsm, self._rng, [text.encode() for text in self._drawn.texts])
        walked = []
        for _ in range(_WALKS):
            tokens, states = walker.walk(self._rng.choice([4, 12, 30]))
            walked.append(tokens)
            self._counts["walks"] += 1
            self._counts["steps"] += len(tokens)
            self._ask("same_state", text_of(fsm, tokens))
            for length in range(len(states)):
                if fsm.is_terminal(states[length]):
                    self._text(text_of(fsm, tokens[:length]))
        for tokens in self._rng.sample(walked, min(_STATES, len(walked))):
            cut = tokens[: self._rng.randrange(len(tokens) + 1)]
            for prefix in (tokens, cut):
                self._counts["states compared"] += 1
                if self._ask("consistent", prefix) and self._ask("has_a_way_on", prefix):
                    self._ask("completion_is_sound", prefix)
        self._ask("stored", self._rng.choice(walked))

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _text(self, data: bytes) -> None:
        """A text in both directions."""
        accepted = is_accepted(self._subject, data)
        if accepted is None:
            return
        self._counts["texts accepted" if accepted else "texts refused"] += 1
        self._ask("sound" if accepted else "complete", data)

    def _values(self) -> None:
        for value in self._drawn.values:
            self._value(value)
        for text in self._drawn.texts:
            self._text(text.encode())

    def _value(self, value: Any) -> None:
        subject, rng = self._subject, self._rng
        data = subject.write(value).encode()
        self._text(data)
        if is_accepted(subject, data):
            self._ask("same_state", data)
        elif many_orders(value) <= _MOST_ORDERS and "complete" not in self.failures:
            self._ask("complete_in_some_order", data)
        self._text(subject.write(value, rng).encode())

    def _small(self) -> None:
        """Every small text: exactly the valid ones are accepted."""
        if self._drawn.maker is not None:
            self._counts["enumerations"] += 1
            for value in self._drawn.maker.small():
                self._text(self._subject.write(value).encode())
        elif not self._subject.is_json:
            self._counts["enumerations"] += 1
            for text in _short_texts(self._drawn.alphabet.characters[:3], 4):
                self._text(text.encode())

    def _mutations(self) -> None:
        rng = self._rng
        sources = [text.encode() for text in self._drawn.texts] or [b""]
        pieces = [data for token in range(self._subject.vocabulary.size) if (data := self._piece(token))]
        for _ in range(_MUTATIONS):
            data = rng.choice(sources)
            place = rng.randrange(len(data) + 1)
            end = place + rng.choice([0, 0, 1, 1, 2, 3])
            inserted = rng.choice([b"", rng.choice(pieces), rng.choice(pieces)]) if pieces else b""
            self._text(data[:place] + inserted + data[end:])

    def _piece(self, token: int) -> bytes:
        return self._subject.vocabulary.token_bytes(token)


def _short_texts(characters: list[str], longest: int) -> Iterator[str]:
    texts = [""]
    for _ in range(longest + 1):
        yield from texts
        texts = [text + character for text in texts for character in characters]
