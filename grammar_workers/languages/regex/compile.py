r"""Compiler of regular expressions to DFAs over characters.

The language is the common subset of ECMA-262 (with flag u) and Python's `re`. The two dialects differ in `\d`, `\w`,
`\s` and their complements, in `.`, and in `$` before a final line feed. There, a pattern matches only the texts that
both dialects match. So every generated text is valid in both. A look-ahead must match the rest of the text, and a
look-behind the text read so far.
"""

from __future__ import annotations

from grammar_workers.budget import limits_at, remembered
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.determinize import SubsetConstruction
from grammar_workers.languages.regex.neighbors import PYTHON_END, Neighbor, between
from grammar_workers.languages.regex.nfa import ENDS, Alphabet, Condition, GlushkovNfa
from grammar_workers.languages.regex.written_out import largest_part, parts_of
from grammar_workers.memo import memoized
from grammar_workers.options import Limits


def compile_regex(pattern: str, *, search: bool, limits: Limits, either: bool = False) -> Dfa:
    """Compile a regular expression to the minimal DFA of the matching texts.

    A malformed pattern raises InvalidSpecificationError with the position in `pattern`. A construct without support
    raises UnsupportedFeatureError with the position. A too large pattern raises LimitExceededError.

    Args:
        pattern: The regular expression.
        search: True to match somewhere inside the text, False to match the whole text.
        limits: Bounds on states and on steps of work.
        either: False for texts that match in both dialects (ECMA-262 and Python's `re`). True for texts that match in
            at least one dialect: use it if the result is negated.

    Returns:
        The minimal DFA over characters. It may accept no text.
    """
    return compile_tree(parse.read_regex(pattern, limits), search=search, limits=limits, either=either)


def compile_tree(tree: parse.Node, *, search: bool, limits: Limits, either: bool = False) -> Dfa:
    """Compile a parsed regular expression to a DFA over characters, which accepts the matching texts.

    A construct without support raises UnsupportedFeatureError. A too large pattern raises LimitExceededError.

    Args:
        tree: The parsed pattern.
        search: True to match somewhere inside the text, False to match the whole text.
        limits: Bounds on states and on steps of work.
        either: False for texts that match in both dialects (ECMA-262 and Python's `re`), True for texts that match in
            at least one dialect.

    Returns:
        The minimal DFA. It may accept no text.
    """
    with limits_at(position=largest_part(tree)):
        positions = Positions(limits)
        whole = positions.automaton(tree, either, anywhere=search)
        construction = SubsetConstruction(list(positions.alphabet), positions.aheads, positions.behinds, limits)
        return construction.automaton(whole)


@remembered(maxsize=4096)
def search_automaton(pattern: str, limits: Limits, either: bool = False) -> Dfa:
    """Return the DFA of the texts that contain a match of a regular expression, from a cache.

    Errors are raised as by `compile_regex`: InvalidSpecificationError for a malformed pattern, UnsupportedFeatureError
    for a construct without support, LimitExceededError for a too large pattern.

    Args:
        pattern: The regular expression, which may match anywhere in the text.
        limits: Bounds on states and on steps of work.
        either: False for texts that match in both dialects (ECMA-262 and Python's `re`), True for texts that match in
            at least one dialect.
    """
    return compile_regex(pattern, search=True, limits=limits, either=either)


class Positions:
    """Builder of the Glushkov NFAs of a pattern: one for the whole pattern, one for each distinct look-around.

    A Glushkov NFA has one state, a *position*, for each character of the pattern. A set of positions is an integer: bit
    i is set if position i is in the set. Bit 0 means that the text may end.

    The methods have a parameter `either`. False: a part must match in both dialects (ECMA-262 and Python's `re`). True:
    one dialect suffices. Inside a negative look-around the value is inverted.

    Args:
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.
        allowed: The characters that texts may contain.

    Attributes:
        alphabet: Character set -> its number, for the sets of all these NFAs.
        aheads: NFAs of look-aheads, inner ones first. They read the rest of the text.
        behinds: NFAs of look-behinds, inner ones first. They read the text from its beginning.
    """

    def __init__(self, limits: Limits, allowed: Charset = charset.ALL) -> None:
        self._limits = limits
        self._allowed = allowed
        self.alphabet: Alphabet = {}
        self.aheads: list[GlushkovNfa] = []
        self.behinds: list[GlushkovNfa] = []
        self._inside_behind = False

    def automaton(self, node: parse.Node, either: bool, *, anywhere: bool) -> GlushkovNfa:
        """Return the Glushkov NFA of a whole pattern.

        Constructs without support raise UnsupportedFeatureError, and too many positions LimitExceededError.

        Args:
            node: The parsed pattern.
            either: False if the pattern must match in both dialects, True if one dialect suffices.
            anywhere: True if the match may begin and end anywhere in the text.
        """
        result = GlushkovNfa(self.alphabet, self._limits)
        first = self.build(result, node, result.rest() if anywhere else ENDS, either)
        result.start = result.any_text(first) if anywhere else first
        return result

    def build(self, out: GlushkovNfa, node: parse.Node, following: int, either: bool) -> int:
        """Append the positions (states, one for each character) of a part of the pattern to an NFA.

        Args:
            out: The NFA to extend.
            node: The part.
            following: The positions that may follow the part, as bits of an integer. Bit 0: the text may end.
            either: False if the part must match in both dialects, True if one dialect suffices.

        Returns:
            The positions with which the part may begin, as bits. They include `following` if the part may be empty.
        """
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
        """Append the positions (states, one for each character) of a repetition to an NFA.

        Args:
            out: The NFA to extend.
            node: The repetition.
            following: The positions that may follow the repetition, as bits of an integer. Bit 0: the text may end.
            either: False if the repetition must match in both dialects, True if one dialect suffices.

        Returns:
            The positions with which the repetition may begin, as bits. They include `following` if it may be empty.
        """
        low, high = node.low, node.high
        if not reads(node.body):
            # Conditions read nothing, so one repetition is equivalent to many.
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
                # The repetition may also end after the last required copy.
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
        # Python's `$` also matches before a final line feed.
        if following == ENDS:
            return ENDS
        if following == out.universal | ENDS:
            return ENDS | (out.position(charset.of("\n"), ENDS) if either else 0)
        return self.build(out, PYTHON_END, following, either) if either else out.gate(Condition.AT_END, following)

    def _look(self, out: GlushkovNfa, node: parse.Look, following: int, either: bool) -> int:
        if not node.behind:
            self._refuse_inside_behind("a look-ahead", node.position)
        index = self._index(node, either != node.negative)
        condition = Condition.BEHIND if node.behind else Condition.AHEAD
        return out.gate(condition, following, index=index, negative=node.negative)

    def _word_boundary(self, out: GlushkovNfa, node: parse.WordBoundary, following: int, either: bool) -> int:
        self._refuse_inside_behind("a word boundary", node.position)
        ecma, python = node.words.ecma(), node.words.python()
        # The border of the text belongs to a negated set.
        pairs: list[tuple[Neighbor, Neighbor]] = []
        if node.negative and either:
            pairs = [((one, outside), (one, outside)) for one in (ecma, python) for outside in (False, True)]
        elif node.negative:
            disputed = charset.subtract(python, ecma)
            other = charset.complement(python)
            pairs = [((ecma, False), (ecma, False)), ((disputed, False), (disputed, False))]
            # Before version 3.14, `\B` in Python does not match in the empty text.
            pairs += [((other, False), (python, True)), ((python, True), (other, False))]
        else:
            for one in (ecma, python) if either else (ecma,):
                outside = (one if either else python, True)
                pairs += [((one, False), outside), (outside, (one, False))]
        return self.build(out, between(pairs), following, either)

    @memoized
    def _index(self, node: parse.Look, either: bool) -> int:
        """Return the index of the NFA of a look-around in `aheads` or `behinds`."""
        source = GlushkovNfa(self.alphabet, self._limits)
        outside, self._inside_behind = self._inside_behind, node.behind
        begun = self.build(source, node.body, ENDS if node.behind else source.rest(), either)
        self._inside_behind = outside
        source.start = source.any_text(begun) if node.behind else begun
        automata = self.behinds if node.behind else self.aheads
        automata.append(source)
        return len(automata) - 1

    def _refuse_inside_behind(self, what: str, position: int) -> None:
        if self._inside_behind:
            raise UnsupportedFeatureError(
                f"{what} inside a look-behind is not supported; move it out", position=position
            )


def is_plain(node: parse.Node) -> bool:
    """Return whether a part of a pattern contains no anchor, word boundary or look-around.

    A plain part matches independently of the text around it. So all its copies in a repetition accept the same texts.
    """
    return not isinstance(node, parse.Anchor | parse.Look | parse.WordBoundary) and all(map(is_plain, parts_of(node)))


def reads(node: parse.Node) -> bool:
    """Return whether a part of a pattern can read at least one character. Look-arounds and anchors read none."""
    if isinstance(node, parse.Look) or (isinstance(node, parse.Repeat) and node.high == 0):
        return False
    return isinstance(node, parse.Characters) or any(map(reads, parts_of(node)))
