"""Adapter for mlx-lm."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from turnstile_llm.grammar import Grammar, apply_bitmask
from turnstile_llm.outputs import OutputMasks


class LogitsProcessor:
    """Logits processor that allows only outputs of a grammar. Pass it in the argument `logits_processors`.

    It supports `generate`, `stream_generate` with and without a draft model, and `batch_generate`. For a grammar of
    each prompt of a batch, pass a list with a new object for each prompt to `BatchGenerator.insert`. End tokens are
    masked until the output is complete. An object may be used for several calls, one after the other. Use a new object
    if a prompt consists of the last prompt and a part of its output. ValueError is raised if the vocabulary of the
    grammar has no end token.

    Args:
        grammar: Grammar of all prompts.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._masks = OutputMasks([grammar])

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Return logits with -inf for disallowed tokens. An output that has ended allows only end tokens.

        Args:
            tokens: Prompt and output so far, an integer array [length].
            logits: Float array [1, V].
        """
        mx.async_eval(logits)  # the forward pass goes on while the mask is computed
        return apply_bitmask(logits, self._masks.bitmask(np.array(tokens)[None], logits.shape[1]))
