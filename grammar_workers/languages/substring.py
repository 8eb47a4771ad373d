"""Compiler of the `substring` specification, and of the keyword `substring_of` of schemas.

Both allow a *span*: a contiguous piece of a source text.
"""

from __future__ import annotations

from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.spans import Spans, spans_of
from grammar_workers.options import Limits
from grammar_workers.specification import Substring


def spans(asked: Substring, limits: Limits, allowed: Charset = ALL) -> Spans:
    """Compile the spans (contiguous pieces) of a source text to a suffix automaton.

    A text that is too long raises LimitExceededError.

    Args:
        asked: The specification: the source text, and the flags `whole_words` and `case_sensitive`.
        limits: Bounds on states and on steps of work.
        allowed: The characters that spans may contain. Spans with other characters are excluded.

    Returns:
        The automaton, which accepts the spans and the empty text.
    """
    return spans_of(asked.text, limits, allowed, whole_words=asked.whole_words, case_sensitive=asked.case_sensitive)
