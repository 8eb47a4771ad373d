"""The engines that have a logits processor, with the embedded model: one interface for tests and measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grammar_workers import TokenFSM
from tests.documents import REPOSITORY
from turnstile_llm import Grammar, Vocabulary

FOLDER = REPOSITORY / "models" / "turnstile-tiny"
END = 1
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

Processor = Callable[[Any, Any], Any]


class Runner(Protocol):
    """An engine with the embedded model."""

    vocabulary: Vocabulary

    def processor(self, grammar: Grammar) -> Any:
        """A new logits processor of ours."""

    def generate(self, prompt: list[int], processor: Any, tokens: int, temperature: float, seed: int) -> list[int]:
        """The output, with its end token if it has ended."""

    def logits(self) -> Any:
        """Logits of zeros in the shape that the engine passes."""

    def ids(self, tokens: list[int]) -> Any:
        """Tokens as the engine passes them."""


class Transformers:
    def __init__(self, _: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
        self.vocabulary = Vocabulary.from_pretrained(str(FOLDER))

    def processor(self, grammar: Grammar) -> Any:
        from turnstile_llm.transformers import LogitsProcessor

        return LogitsProcessor(grammar)

    def generate(self, prompt: list[int], processor: Any, tokens: int, temperature: float, seed: int) -> list[int]:
        self._torch.manual_seed(seed)
        ids = self.ids(prompt)
        settings: dict[str, Any] = {"do_sample": temperature > 0}
        settings |= {"temperature": temperature, "top_k": 0} if temperature else {}
        inputs = {"input_ids": ids, "attention_mask": self._torch.ones_like(ids), "max_new_tokens": tokens}
        processors = [] if processor is None else [processor]
        found: list[int] = self.model.generate(**inputs, **settings, logits_processor=processors)[0].tolist()
        return found[len(prompt) :]

    def logits(self) -> Any:
        return self._torch.zeros(1, self.vocabulary.size)

    def ids(self, tokens: list[int]) -> Any:
        return self._torch.tensor([tokens])


class Wide(Transformers):
    """transformers with a small random model of 131,072 tokens."""

    def __init__(self, _: Path) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from benchmarks.vocabularies import tekken_vocabulary

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        self._torch, self.vocabulary = torch, tekken_vocabulary()
        self.model = LlamaForCausalLM(
            LlamaConfig(vocab_size=self.vocabulary.size, eos_token_id=2, pad_token_id=0, **sizes)
        )


class LlamaCpp:
    def __init__(self, folder: Path) -> None:
        from llama_cpp import Llama

        from models.to_gguf import convert
        from turnstile_llm.llama_cpp import vocabulary

        convert(folder / "turnstile-tiny.gguf")
        self.llama = Llama(str(folder / "turnstile-tiny.gguf"), n_ctx=2048, n_threads=1, verbose=False)
        self.vocabulary = vocabulary(self.llama)

    def processor(self, grammar: Grammar) -> Any:
        from turnstile_llm.llama_cpp import LogitsProcessor

        return LogitsProcessor(grammar, self.llama)

    def generate(
        self, prompt: list[int], processor: Any, tokens: int, temperature: float, seed: int, grammar: Any = None
    ) -> list[int]:
        self.llama.set_seed(seed)
        found: list[int] = []
        processors = None if processor is None else [processor]
        settings: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": temperature, "grammar": grammar}
        for token in self.llama.generate(prompt, logits_processor=processors, **settings):
            found.append(token)
            if token == END or len(found) == tokens:
                break
        return found

    def logits(self) -> Any:
        return np.zeros(self.vocabulary.size, np.float32)

    def ids(self, tokens: list[int]) -> Any:
        return np.array(tokens, np.intc)


class Mlx:
    def __init__(self, _: Path) -> None:
        import mlx.core as mx
        from mlx_lm import load

        self._mx = mx
        self.model, self.tokenizer = load(str(FOLDER))[:2]
        self.model.set_dtype(mx.float32)
        self.vocabulary = Vocabulary.from_pretrained(str(FOLDER))

    def processor(self, grammar: Grammar) -> Any:
        from turnstile_llm.mlx import LogitsProcessor

        return LogitsProcessor(grammar)

    def generate(
        self, prompt: list[int], processor: Any, tokens: int, temperature: float, seed: int, draft: bool = False
    ) -> list[int]:
        from mlx_lm.generate import generate_step, speculative_generate_step
        from mlx_lm.sample_utils import make_sampler

        self._mx.random.seed(seed)
        found: list[int] = []
        settings: dict[str, Any] = {"max_tokens": tokens, "sampler": make_sampler(temp=temperature)}
        settings["logits_processors"] = None if processor is None else [processor]
        models = (self.model, self.model) if draft else (self.model,)
        for step in (speculative_generate_step if draft else generate_step)(self.ids(prompt), *models, **settings):
            found.append(int(step[0]))
            if found[-1] == END:
                break
        return found

    def logits(self) -> Any:
        return self._mx.zeros((1, self.vocabulary.size))

    def ids(self, tokens: list[int]) -> Any:
        return self._mx.array(tokens)


RUNNERS: dict[str, Callable[[Path], Runner]] = {"transformers": Transformers, "llama.cpp": LlamaCpp, "mlx": Mlx}


class Recorder:
    """A processor, with the tokens of each call and which tokens it allowed."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self.calls: list[tuple[list[int], NDArray[np.bool_]]] = []

    def __call__(self, tokens: Any, scores: Any) -> Any:
        masked = self._processor(tokens, scores)
        self.calls.append((np.array(tokens).ravel().tolist(), np.isfinite(np.array(masked)).ravel()))
        return masked

    def compared(self, fsm: TokenFSM, length: int) -> tuple[int, int]:
        """The numbers of masks that are equal to those of an automaton, and of others; prompts have `length` tokens."""
        equal = 0
        for tokens, allowed in self.calls:
            equal += np.array_equal(allowed, expected(fsm, tokens[length:]))
        return equal, len(self.calls) - equal


def expected(fsm: TokenFSM, output: Sequence[int]) -> NDArray[np.bool_]:
    """The tokens that an automaton allows after an output; only end tokens after its end."""
    state = fsm.initial_state
    for token in output:
        state = fsm.next_state(state, token) if state > fsm.end_state else state
    mask = fsm.allowed_mask(state) if state > fsm.end_state else fsm.vocabulary.eos_mask
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[: fsm.vocabulary.size].astype(bool)
