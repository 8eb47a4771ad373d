"""Texts that the vocabulary can spell: one with a character that no token has is never generated."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import restrict
from grammar_workers.languages.json_schema.solve.text_language import TextLanguage
from grammar_workers.pushdown.json_text import SHORT_ESCAPES, encode_string_body


class Spelling:
    """The characters of a vocabulary (`spellable`, None: all), and what of a language is left with these."""

    def __init__(self, spellable: frozenset[str] | None) -> None:
        self.spellable = spellable

    def can_spell(self, text: Iterable[str]) -> bool:
        """True if tokens spell `text` as it is, without escapes."""
        return self.spellable is None or self.spellable.issuperset(text)

    def can_write(self, text: str) -> bool:
        """True if tokens spell `text` as the body of a JSON string, with escapes where it needs them."""
        return self.can_spell(encode_string_body(text).decode())

    def spelled(self, language: TextLanguage) -> TextLanguage:
        """`language` less what the vocabulary cannot spell and labels that no text has."""
        return language.restricted(self.can_write, lambda automaton: restrict(automaton, self.writable))

    @functools.cached_property
    def writable(self) -> Charset:
        """The characters whose spelling inside a JSON string the vocabulary has."""
        if self.spellable is None:
            return ALL
        raw = {c for c in self.spellable if c not in SHORT_ESCAPES and c >= " "}
        escaped = {chr(code) for code in range(0x20)} | set(SHORT_ESCAPES)
        raw |= {c for c in escaped if self.can_write(c)}
        return charset.of(raw)
