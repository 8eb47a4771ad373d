"""The text of a `substring` specification, or of `substring_of` in a schema, as spans."""

from __future__ import annotations

from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.spans import Spans, spans_of
from grammar_workers.options import Limits
from grammar_workers.specification import Substring


def spans(asked: Substring, limits: Limits, allowed: Charset = ALL) -> Spans:
    """Return the spans of a text that consist of `allowed` characters."""
    return spans_of(asked.text, limits, allowed, whole_words=asked.whole_words, case_sensitive=asked.case_sensitive)
