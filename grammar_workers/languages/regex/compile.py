r"""Regular expressions: the common ground of ECMA-262 (with flag u) and Python's `re`, as character automata.

Where the two dialects differ (`\d`, `\w`, `\s` and their complements, `.`, `$` before a final line feed), a pattern
means what both agree on, so that whatever is generated is valid in both. Look-ahead is the intersection of the rest of
the text with what the look-ahead describes, look-behind a condition on what has been read so far.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable

from grammar_workers.budget import limits_at, remembered
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.determinize import SubsetConstruction
from grammar_workers.languages.regex.nfa import ENDS, Alphabet, Condition, GlushkovNfa
from grammar_workers.languages.regex.written_out import largest_part, parts_of
from grammar_workers.options import Limits


def compile_regex(pattern: str, *, search: bool, limits: Limits, either: bool = False) -> Dfa:
    """The automaton of the texts that `pattern` matches: somewhere inside when `search`, else as a whole.

    Both dialects agree that these texts match; with `either`, at least one says so (what a negation must avoid).

    Raises InvalidSpecificationError or UnsupportedFeatureError with the position in `pattern`, and LimitExceededError.
    """
    return compile_tree(parse.read_regex(pattern, limits), search=search, limits=limits, either=either)


def compile_tree(tree: parse.Node, *, search: bool, limits: Limits, either: bool = False) -> Dfa:
    """`compile_regex` for a pattern that has been read; raises UnsupportedFeatureError and LimitExceededError."""
    with limits_at(position=largest_part(tree)):
        positions = Positions(limits)
        whole = positions.automaton(tree, either, anywhere=search)
        construction = SubsetConstruction(list(positions.alphabet), positions.aheads, positions.behinds, limits)
        return construction.automaton(whole)


@remembered(maxsize=4096)
def search_automaton(pattern: str, limits: Limits, either: bool = False) -> Dfa:
    """`compile_regex` with `search`, shared between schemas."""
    return compile_regex(pattern, search=True, limits=limits, either=either)


class Positions:
    """The Glushkov NFAs of a pattern, from its tree: one for the whole, one for every look-around.

    `either` says whether a part must match where one dialect says so, or where both do. It is turned round inside
    whatever is negated.
    """

    def __init__(self, limits: Limits, allowed: Charset = charset.ALL) -> None:
        self._limits = limits
        self._allowed = allowed
        self.alphabet: Alphabet = {}
        self.aheads: list[GlushkovNfa] = []
        self.behinds: list[GlushkovNfa] = []
        self._known: dict[tuple[bool, Hashable], int] = {}
        self._inside_behind = False

    def automaton(self, node: parse.Node, either: bool, *, anywhere: bool) -> GlushkovNfa:
        result = GlushkovNfa(self.alphabet, self._limits)
        first = self.build(result, node, result.rest() if anywhere else ENDS, either)
        result.start = result.any_text(first) if anywhere else first
        return result

    def build(self, out: GlushkovNfa, node: parse.Node, following: int, either: bool) -> int:
        """Append the part `node` of the pattern before `following`; returns the bits that it begins with."""
        if isinstance(node, parse.Characters):
            characters = node.characters.either if either else node.characters.common
            if self._allowed is not charset.ALL:
                characters = charset.intersect(characters, self._allowed)
            return out.position(characters, following)
        if isinstance(node, parse.Sequence):
            for part in reversed(node.parts):
                following = self.build(out, part, following, either)
            return following
        if isinstance(node, parse.Alternatives):
            first = 0
            for branch in node.branches:
                first |= self.build(out, branch, following, either)
            return first
        if isinstance(node, parse.Repeat):
            return self.repeat(out, node, following, either)
        if isinstance(node, parse.Look):
            return self._look(out, node, following, either)
        if isinstance(node, parse.WordBoundary):
            return self._word_boundary(out, node, following, either)
        return self._anchor(out, node, following, either)

    def repeat(self, out: GlushkovNfa, node: parse.Repeat, following: int, either: bool) -> int:
        low, high = node.low, node.high
        if not reads(node.body):
            # Conditions alone: once is as good as often.
            low, high = min(low, 1), min(1 if high is None else high, 1)
        if high is None:
            loop = out.loop()
            first = self.build(out, node.body, loop, either)
            following = out.close_loop(loop, first, following)
        else:
            begin, end, copies = len(out.follow), following, high - low
            for _ in range(copies):
                following = self.build(out, node.body, following, either) | end
            if low:
                # Behind the last copy that must come its end may be, too.
                following = self.build(out, node.body, following, either)
                low, copies = low - 1, copies + 1
            if is_plain(node.body):
                out.note_copies(begin, copies)
        for _ in range(low):
            following = self.build(out, node.body, following, either)
        return following

    # -- conditions --------------------------------------------------------------------------------------------------

    def _anchor(self, out: GlushkovNfa, node: parse.Anchor, following: int, either: bool) -> int:
        if not node.at_end:
            return out.gate(Condition.AT_START, following)
        self._refuse_inside_behind("an end anchor", node.position)
        # Python's `$` matches before a final line feed, too.
        if following == ENDS:
            return ENDS
        if following == out.universal | ENDS:
            return ENDS | (out.position(charset.of("\n"), ENDS) if either else 0)
        if not either:
            return out.gate(Condition.AT_END, following)
        index = self._ahead("$", lambda rest: rest.position(charset.of("\n"), ENDS) | ENDS)
        return out.gate(Condition.AHEAD, following, index=index)

    def _look(self, out: GlushkovNfa, node: parse.Look, following: int, either: bool) -> int:
        inside = either != node.negative
        identity = (id(node), inside)
        if node.behind:
            index = self._behind(identity, lambda past: self.build(past, node.body, ENDS, inside))
            return out.gate(Condition.BEHIND, following, index=index, negative=node.negative)
        self._refuse_inside_behind("a look-ahead", node.position)
        index = self._ahead(identity, lambda rest: self.build(rest, node.body, rest.rest(), inside))
        return out.gate(Condition.AHEAD, following, index=index, negative=node.negative)

    def _word_boundary(self, out: GlushkovNfa, node: parse.WordBoundary, following: int, either: bool) -> int:
        self._refuse_inside_behind("a word boundary", node.position)
        ecma, python = node.words.ecma(), node.words.python()
        # Pairs of what stands before and behind; of a set that is negated, the border of the text is a part.
        pairs: list[tuple[tuple[Charset, bool], tuple[Charset, bool]]] = []
        if node.negative and either:
            pairs = [((one, outside), (one, outside)) for one in (ecma, python) for outside in (False, True)]
        elif node.negative:
            disputed = charset.subtract(python, ecma)
            other = charset.complement(python)
            pairs = [((ecma, False), (ecma, False)), ((disputed, False), (disputed, False))]
            # Before version 3.14, Python sees no `\B` in the empty text.
            pairs += [((other, False), (python, True)), ((python, True), (other, False))]
        else:
            for one in (ecma, python) if either else (ecma,):
                outside = (one if either else python, True)
                pairs += [((one, False), outside), (outside, (one, False))]
        first = 0
        for (before, not_before), (behind, not_behind) in pairs:
            index = self._ahead(behind, functools.partial(_one_of, behind))
            gate = out.gate(Condition.AHEAD, following, index=index, negative=not_behind)
            index = self._behind(before, functools.partial(_last_of, before))
            first |= out.gate(Condition.BEHIND, gate, index=index, negative=not_before)
        return first

    def _ahead(self, identity: Hashable, build: Callable[[GlushkovNfa], int]) -> int:
        """The number of the automaton that reads the rest of the text."""
        return self._numbered(self.aheads, identity, build)

    def _behind(self, identity: Hashable, build: Callable[[GlushkovNfa], int]) -> int:
        """The number of the automaton that reads the text so far, from its beginning."""
        outside, self._inside_behind = self._inside_behind, True
        number = self._numbered(self.behinds, identity, lambda past: past.any_text(build(past)))
        self._inside_behind = outside
        return number

    def _numbered(self, automata: list[GlushkovNfa], identity: Hashable, build: Callable[[GlushkovNfa], int]) -> int:
        """Return the number among `automata` of the one with this identity. It is made once; `build` begins it."""
        key = (automata is self.aheads, identity)
        if key not in self._known:
            source = GlushkovNfa(self.alphabet, self._limits)
            source.start = build(source)
            automata.append(source)
            self._known[key] = len(automata) - 1
        return self._known[key]

    def _refuse_inside_behind(self, what: str, position: int) -> None:
        if self._inside_behind:
            raise UnsupportedFeatureError(
                f"{what} inside a look-behind is not supported; move it out", position=position
            )


def _one_of(characters: Charset, rest: GlushkovNfa) -> int:
    """The rest of the text begins with one of `characters`."""
    return rest.position(characters, rest.rest())


def _last_of(characters: Charset, past: GlushkovNfa) -> int:
    """The text so far ends with one of `characters`."""
    return past.position(characters, ENDS)


def is_plain(node: parse.Node) -> bool:
    """True if a part asks for no condition, so that its copies are alike whatever follows them."""
    return not isinstance(node, parse.Anchor | parse.Look | parse.WordBoundary) and all(map(is_plain, parts_of(node)))


def reads(node: parse.Node) -> bool:
    """True if a part of a pattern can read any character."""
    if isinstance(node, parse.Look) or (isinstance(node, parse.Repeat) and node.high == 0):
        return False
    return isinstance(node, parse.Characters) or any(map(reads, parts_of(node)))
