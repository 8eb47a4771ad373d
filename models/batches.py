"""Training batches. A batch depends only on seed and batch number, so a resumed training gets equal batches."""

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from models.records import Example, draw_example
from models.tokenizer import END

# Label of positions without a loss.
IGNORED = -100
# Number of batches that are sampled together. Their rows are sorted by length, which keeps padding small.
_POOL = 8


def render_prompt(tokenizer: PreTrainedTokenizerFast, example: Example) -> str:
    """Return the text of an example's prompt by the chat template. It ends where the assistant's answer begins.

    Args:
        tokenizer: Tokenizer of the embedded model, with its chat template.
        example: A conversation. The messages before the answer are rendered.
    """
    rendered = tokenizer.apply_chat_template(example.prompt, tokenize=False, add_generation_prompt=True)
    assert isinstance(rendered, str)
    return rendered


@dataclass(frozen=True)
class Batch:
    """A training batch. Each row is one conversation or one window of plain text, padded at the end.

    Attributes:
        input_ids: Token IDs, int64 [rows, length].
        labels: The next token at each position, int64 [rows, length]; `IGNORED` (-100) in prompts and padding.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class _Row:
    """Tokens of one row. `first_label` is the index of the first token with a loss."""

    ids: list[int]
    first_label: int


class BatchMaker:
    """Makes random training batches of synthetic conversations and windows of plain text.

    Args:
        tokenizer: Tokenizer of the embedded model.
        text: Plain text. It may be empty if `text_share` is 0.
        seed: Seed of the random examples and windows.
        rows: Number of rows per batch.
        text_share: Share of the rows, from 0 to 1, that are windows of `text`. The other rows are conversations.
        text_tokens: Number of tokens of a window.
        copy_batches: Number of batches at the start that have only short copying tasks and no plain text. It is rounded
            up to a multiple of 8.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        text: str,
        *,
        seed: int,
        rows: int,
        text_share: float = 0.06,
        text_tokens: int = 128,
        copy_batches: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._text_ids = np.array(tokenizer(text)["input_ids"], dtype=np.int64)
        self._seed, self._rows, self._copy_batches = seed, rows, copy_batches
        self._text_share, self._text_tokens = text_share, text_tokens
        self._pool_number = -1
        self._pool: list[list[_Row]] = []

    def batch(self, number: int) -> Batch:
        """Return a training batch. Calls with ascending numbers are fast.

        Args:
            number: Number of the batch, from 0.
        """
        pool_number, position = divmod(number, _POOL)
        if pool_number != self._pool_number:
            self._pool = self._draw_pool(pool_number)
            self._pool_number = pool_number
        return self._collate(self._pool[position])

    def _draw_pool(self, pool_number: int) -> list[list[_Row]]:
        rng = Random(f"{self._seed}/{pool_number}")
        copying = pool_number * _POOL < self._copy_batches
        total = self._rows * _POOL
        texts = 0 if copying else round(total * self._text_share)
        rows = [self._text_row(rng) for _ in range(texts)]
        rows += self._conversations([draw_example(rng, copying=copying) for _ in range(total - texts)])
        rows.sort(key=lambda row: len(row.ids))
        batches = [rows[start : start + self._rows] for start in range(0, total, self._rows)]
        rng.shuffle(batches)
        return batches

    def _text_row(self, rng: Random) -> _Row:
        start = rng.randrange(len(self._text_ids) - self._text_tokens)
        return _Row(self._text_ids[start : start + self._text_tokens].tolist(), first_label=1)

    def collate_conversations(self, examples: list[Example], rows: int) -> list[Batch]:
        """Return validation batches of given conversations.

        Args:
            examples: The conversations.
            rows: Maximum number of rows per batch.

        Returns:
            Batches with the examples in order. Only the tokens of the answers have labels.
        """
        made = self._conversations(examples)
        return [self._collate(made[start : start + rows]) for start in range(0, len(made), rows)]

    def collate_text(self, text: str) -> Batch:
        """Return one validation batch of windows that are spread evenly over a text.

        Args:
            text: A text with more tokens than one window.
        """
        ids = self._tokenizer(text)["input_ids"]
        starts = np.linspace(0, len(ids) - self._text_tokens, self._rows, dtype=int)
        return self._collate([_Row(ids[start : start + self._text_tokens], first_label=1) for start in starts])

    def _conversations(self, examples: list[Example]) -> list[_Row]:
        """Return rows whose loss is on the answer and its end token."""
        prompts = [render_prompt(self._tokenizer, example) for example in examples]
        prompt_ids = self._tokenizer(prompts)["input_ids"]
        answer_ids = self._tokenizer([example.answer + END for example in examples])["input_ids"]
        return [_Row(prompt + answer, len(prompt)) for prompt, answer in zip(prompt_ids, answer_ids, strict=True)]

    def _collate(self, rows: list[_Row]) -> Batch:
        length = max(len(row.ids) for row in rows) - 1
        input_ids = torch.full((len(rows), length), self._tokenizer.pad_token_id)
        labels = torch.full((len(rows), length), IGNORED)
        for index, row in enumerate(rows):
            ids = torch.tensor(row.ids)
            input_ids[index, : len(ids) - 1] = ids[:-1]
            labels[index, row.first_label - 1 : len(ids) - 1] = ids[row.first_label :]
        return Batch(input_ids, labels)
