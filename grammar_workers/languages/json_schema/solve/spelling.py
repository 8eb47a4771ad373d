"""Restriction of texts to the characters that the tokens of a vocabulary can encode."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import restrict
from grammar_workers.languages.json_schema.solve.text_language import TextLanguage
from grammar_workers.pushdown.json_text import ESCAPED_CHARACTERS, encode_string_body


class Spelling:
    """Set of the characters that the tokens of a vocabulary can encode.

    Args:
        spellable: The characters; None for all.
    """

    def __init__(self, spellable: frozenset[str] | None) -> None:
        self.spellable = spellable

    def can_spell(self, text: Iterable[str]) -> bool:
        """Return whether tokens can encode each character of `text` as it is, without escapes."""
        return self.spellable is None or self.spellable.issuperset(text)

    def can_write(self, text: str) -> bool:
        """Return whether tokens can encode a text as the body of a JSON string, with escapes where needed."""
        return self.can_spell(encode_string_body(text).decode())

    def spelled(self, language: TextLanguage) -> TextLanguage:
        """Return a language without texts that tokens cannot encode. Labels that no remaining text has are removed."""
        return language.restricted(self.can_write, lambda automaton: restrict(automaton, self.writable))

    @functools.cached_property
    def writable(self) -> Charset:
        """Set of the characters that tokens can encode inside a JSON string, raw or escaped."""
        if self.spellable is None:
            return ALL
        return charset.of(self.spellable - ESCAPED_CHARACTERS | set(filter(self.can_write, ESCAPED_CHARACTERS)))
