"""What an engine asks of a tokenizer when prompts are token ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grammar_workers import Vocabulary


@dataclass(frozen=True, slots=True)
class VocabularyTokenizer:
    """A vocabulary in the place of a transformers tokenizer; `spell`: a text's token ids."""

    vocabulary: Vocabulary
    spell: Callable[[str], list[int]]

    def get_vocab(self) -> dict[str, int]:
        return {str(token_id): token_id for token_id in range(self.vocabulary.size)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return self.spell(text)
