"""Adapter for llama-cpp-python."""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np

from grammar_workers import Vocabulary
from turnstile_llm.grammar import Grammar, WidthError, apply_bitmask
from turnstile_llm.outputs import OutputMasks


def vocabulary(llama: Any) -> Vocabulary:
    """Return the vocabulary of a model that `llama_cpp.Llama` has loaded from a GGUF file.

    A token has the bytes that `Llama` adds to the output for it. For tokens of more than 32 bytes, these are none, so
    they are never allowed. End tokens are all tokens at which `Llama` stops.

    Args:
        llama: A `llama_cpp.Llama`. `vocab_only=True` is enough.
    """
    tokens, tokenizer = range(llama.n_vocab()), llama_cpp.LlamaTokenizer(llama)
    token_bytes = [tokenizer.detokenize([token]) for token in tokens]
    names = {token: tokenizer.detokenize([token], special=True) for token in tokens if not token_bytes[token]}
    table = llama_cpp.llama_model_get_vocab(llama.model)
    ends = [token for token in tokens if llama_cpp.llama_vocab_is_eog(table, token)]
    return Vocabulary(token_bytes, ends, {name.decode("utf-8", "replace"): n for n, name in names.items() if name})


class LogitsProcessor(llama_cpp.LogitsProcessorList):
    """Logits processor that allows only outputs of a grammar. Pass it in the argument `logits_processor`.

    It is a list with itself as the only item, because `create_completion` takes lists. It supports `create_completion`,
    `create_chat_completion` and `generate`. End tokens are masked until the output is complete. An object may be used
    for several calls, one after the other. Use a new object if a prompt consists of the last prompt and a part of its
    output.

    llama-cpp-python prints exceptions of a logits processor and continues. After an exception, such as
    LimitExceededError, the object masks only the end tokens, so the output gets the `finish_reason` "length".

    Args:
        grammar: Grammar of all outputs.
        llama: The `llama_cpp.Llama` that generates the outputs.

    Raises:
        WidthError: The vocabulary of the grammar has another size than that of the model.
        ValueError: `llama` has a draft model, or the vocabulary of the grammar has no end token.
    """

    def __init__(self, grammar: Grammar, llama: Any) -> None:
        super().__init__([self])
        self._masks, tokens = OutputMasks([grammar]), grammar.automaton().vocabulary
        self._ends, self._failed = list(tokens.eos_token_ids), False
        if tokens.size != llama.n_vocab():
            raise WidthError(f"the vocabulary has {tokens.size} tokens, the model {llama.n_vocab()}: use `vocabulary`")
        if llama.draft_model is not None:  # `input_ids` then ends with all drafts, whichever of them is verified
            raise ValueError("drafts cannot be combined with a logits processor: load the model without draft_model")

    def extend(self, others: Any) -> Any:
        """Return a list of this processor and others. With `logit_bias`, `create_completion` uses the result."""
        return llama_cpp.LogitsProcessorList([self, *others])

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the scores, which are set to -inf for disallowed tokens. An ended output allows only end tokens.

        Args:
            input_ids: Prompt and output so far, an integer array [length].
            scores: Logits, a float array [V]. It is changed in place.
        """
        try:
            if not self._failed:
                return apply_bitmask(scores[None], self._masks.bitmask(input_ids[None], len(scores)))[0]
        except BaseException:
            self._failed = True
            scores[self._ends] = -np.inf
            raise
        scores[self._ends] = -np.inf
        return scores
