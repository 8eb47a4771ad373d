"""Adapter for `generate` and `pipeline` of transformers."""

from __future__ import annotations

from collections.abc import Sequence

import transformers
from torch import Tensor

from turnstile_llm.grammar import Grammar, apply_bitmask
from turnstile_llm.outputs import OutputMasks


class LogitsProcessor(transformers.LogitsProcessor):
    """Logits processor that allows only outputs of a grammar. Pass it in the argument `logits_processor`.

    It supports greedy search, sampling, beam search, `num_return_sequences`, assisted generation and static caches. End
    tokens are masked until the output is complete. An object may be used for several calls of `generate`, one after the
    other. Use a new object if a prompt consists of the last prompt and a part of its output. ValueError is raised if
    the vocabulary of a grammar has no end token.

    Args:
        grammar: Grammar of all prompts, or a list with the grammar of each prompt of the batch; None: no constraint.
    """

    supports_continuous_batching = False

    def __init__(self, grammar: Grammar | Sequence[Grammar | None]) -> None:
        self._masks = OutputMasks([grammar] if isinstance(grammar, Grammar) else list(grammar))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return a copy of the scores with -inf for disallowed tokens.

        A row whose output has ended, or is a beam without a valid continuation, allows only end tokens.

        Args:
            input_ids: Prompts and outputs so far, int64 [rows, length].
            scores: Logits or log-probabilities, float [rows, V].
        """
        return apply_bitmask(scores.clone(), self._masks.bitmask(input_ids.cpu().numpy(), scores.shape[1]))
