"""Loads a model, and verifies that this engine computes the same logits as transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from gpu_workers.config import EngineConfig
from gpu_workers.model.attention import IMPLEMENTATION
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.model_runner import ModelRunner, ScheduledTokens
from gpu_workers.model.output_head import OutputHead
from gpu_workers.model.quantization import quantize_int8
from grammar_workers import Vocabulary
from grammar_workers.logs import get_logger
from grammar_workers.vocabulary.vocabulary import load_vocabulary

logger = get_logger(__name__)

_PROBE_TOKENS = 12
# Relative to the largest logit. Models compute norms and rotations in float32 even when their weights are float64.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}


class UnsupportedModelError(ValueError):
    """The engine cannot run this model, draft model or EAGLE-3 head correctly. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run, with its tokenizer and KV cache.

    Attributes:
        model: The transformers model, which uses this engine's attention function.
        tokenizer: Tokenizer of the model.
        vocabulary: Bytes of each token, and the end tokens.
        pool: The KV cache of the model.
        runner: Runs forward passes over `pool`.
        head: Output head: hidden states to logits. `head.token_limit` is one past the largest token ID.
        max_model_len: Maximum number of tokens of a sequence, prompt and output together.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    pool: KVPool
    runner: ModelRunner
    head: OutputHead
    max_model_len: int

    def encode(self, text: str) -> list[int]:
        """Tokenize a text as the model's tokenizer does, but without special tokens. Thread-safe.

        Args:
            text: The text.

        Returns:
            Token IDs.
        """
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        # The wrapper sets padding and truncation on every call, which would break calls of other threads.
        if backend is not None:
            return backend.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode(text, add_special_tokens=False)


def load(model: str, config: EngineConfig) -> LoadedModel:
    """Load a model with its tokenizer and vocabulary, move it to its device, and create its KV cache.

    Errors of transformers are passed on, such as OSError for a model that does not exist.

    Args:
        model: Folder or Hugging Face ID.
        config: Settings of the engine.

    Returns:
        The model, verified and ready to run.

    Raises:
        UnsupportedModelError: The engine cannot run the model correctly, or cannot load its quantization.
        ImportError: A package that the model needs is not installed.
    """
    trusted = config.trust_remote_code
    settings = AutoConfig.from_pretrained(model, trust_remote_code=trusted)
    saved = (getattr(settings, "quantization_config", None) or {}).get("quant_method")
    if saved is not None and config.quantization != "none":
        raise UnsupportedModelError(f"{model} is quantised already, by {saved}: leave `quantization` out")
    try:
        weights = AutoModelForCausalLM.from_pretrained(model, dtype=_dtype(settings, config))
    except ImportError as error:
        if saved is None:
            raise
        raise UnsupportedModelError(f"{model} is quantised by {saved}: {error}") from error
    if config.quantization == "int8":
        quantize_int8(weights)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trusted)
    return prepare(weights, tokenizer, load_vocabulary(model, trust_remote_code=trusted), config)


def prepare(model: PreTrainedModel, tokenizer: Tokenizer, vocabulary: Vocabulary, config: EngineConfig) -> LoadedModel:
    """Move a model to its device, create its KV cache, and verify that this engine computes the model's logits.

    Raises UnsupportedModelError if the engine cannot run the model correctly.

    Args:
        model: The model, on any device. It is changed in place.
        tokenizer: Tokenizer of the model.
        vocabulary: Vocabulary of the model.
        config: Settings of the engine. The maximum length is also limited by the model.

    Returns:
        The model, verified and ready to run.
    """
    settings = model.config.get_text_config()
    max_model_len = min(
        config.max_model_len, getattr(settings, "max_position_embeddings", None) or config.max_model_len
    )
    check_supported(model)
    model = model.to(config.device).eval()  # type: ignore[arg-type]
    heads = settings.num_attention_heads
    pool = KVPool(
        layers=settings.num_hidden_layers,
        slots=config.max_num_seqs,
        length=max_model_len,
        kv_heads=getattr(settings, "num_key_value_heads", None) or heads,
        head_dim=getattr(settings, "head_dim", None) or settings.hidden_size // heads,
        dtype=model.dtype,
        device=model.device,
    )
    logger.info(
        "KV cache allocated: gib=%.2f max_num_seqs=%d max_model_len=%d",
        pool.nbytes / 2**30,
        config.max_num_seqs,
        max_model_len,
    )
    separable = verify(model, pool)
    head = OutputHead(model.get_output_embeddings(), token_limit(tokenizer, settings.vocab_size), separable=separable)
    return LoadedModel(
        model, tokenizer, vocabulary, pool, ModelRunner(model, pool, separable=separable), head, max_model_len
    )


def token_limit(tokenizer: Tokenizer, logits_width: int) -> int:
    """Return one past the largest token ID. The logits of a model are often padded beyond this ID.

    Args:
        tokenizer: Tokenizer of the model.
        logits_width: Width of the model's logits, padding included. The returned number is not larger.
    """
    return min(logits_width, max(tokenizer.get_vocab().values()) + 1)


def check_supported(model: PreTrainedModel) -> None:
    """Check that this engine supports the features that the model's configuration declares.

    Only features of attention and the KV cache are checked.

    Args:
        model: The model.

    Raises:
        UnsupportedModelError: A feature is not supported. The message names it.
    """
    settings = model.config.get_text_config()
    kind = settings.model_type
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(f"{kind}: encoder-decoder models are not supported")
    other_layers = sorted(set(getattr(settings, "layer_types", None) or ()) - {"full_attention", "sliding_attention"})
    if other_layers:
        raise UnsupportedModelError(f"{kind}: layers of kind {', '.join(other_layers)} are not supported")
    if model._is_stateful:
        raise UnsupportedModelError(f"{kind}: layers without attention state cannot be rolled back")


@torch.inference_mode()
def verify(model: PreTrainedModel, pool: KVPool) -> bool:
    """Check on a few tokens that the model's logits do not change with the attention function of this engine.

    The check runs two prompt chunks and one decode step. It uses the dummy slot of the KV cache (a slot without an
    owner). Sliding windows are shortened, so that they have an effect. The check detects features without a
    configuration key: attention sinks, position biases, unusual head shapes, and windows that do not reach the
    attention function. Afterwards the model uses the attention function of this engine.

    Args:
        model: The model, on its device. Its attention function is replaced.
        pool: KV cache of the model. The dummy slot is cleared afterwards.

    Returns:
        True if the logits are a plain linear map of the last hidden state. Then the logits of a few tokens can be
        computed without the others.

    Raises:
        UnsupportedModelError: The logits differ, or the model's layers cannot run with this engine.
    """
    tokens = [
        1 + i % (min(model.config.get_text_config().vocab_size, 1000) - 1)
        for i in range(min(_PROBE_TOKENS, pool.length))
    ]
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # transformers' other implementations ignore the cap
    try:
        with _small_windows(model):
            expected = model(torch.tensor([tokens], device=model.device), use_cache=False).logits[0, -1].double()
            model.set_attn_implementation(IMPLEMENTATION)
            logits = _probe(ModelRunner(model, pool, separable=False), pool, tokens)
            hidden = _probe(ModelRunner(model, pool, separable=True), pool, tokens)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UnsupportedModelError(
            f"{model.config.model_type}: the model's layers do not fit the engine: {error}"
        ) from error
    finally:
        pool.clear(pool.dummy_slot, pool.length)
    if not _close(logits[0].double(), expected, _TOLERANCE[model.dtype]):
        raise UnsupportedModelError(
            f"{model.config.model_type}: its attention is not plain causal attention, and sliding windows and"
            " soft-capped scores are all the engine supports beside it"
        )
    separable = _is_separable(model, hidden, logits)
    if not separable:
        logger.warning("output head is not a linear layer, computing all logits of every sequence")
    return separable


@contextlib.contextmanager
def _small_windows(model: PreTrainedModel) -> Iterator[None]:
    """Set all sliding windows to half of the probe.

    transformers' masks read them from the configuration, this engine from the layers.
    """
    owners: list[Any] = [model.config.get_text_config(), *model.modules()]
    windows = [(owner, owner.sliding_window) for owner in owners if getattr(owner, "sliding_window", None)]
    try:
        for owner, _ in windows:
            owner.sliding_window = _PROBE_TOKENS // 2
        yield
    finally:
        for owner, window in windows:
            owner.sliding_window = window


def _is_separable(model: PreTrainedModel, hidden: Tensor, logits: Tensor) -> bool:
    """Return whether the output embeddings, applied to the last hidden state, give the model's logits."""
    head = model.get_output_embeddings()
    weight: Any = getattr(head, "weight", None)
    # A quantized weight has a tensor class of its own.
    plain = isinstance(weight, Tensor) and type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()
    if not plain or weight.shape[1] != hidden.shape[1]:
        return False
    # A cap changes large logits only; those of the probe may be too small to show it.
    if getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        return False
    projected = torch.nn.functional.linear(hidden, weight, getattr(head, "bias", None))
    # Both use the same arithmetic, so they differ much less than two attention kernels do.
    return _close(projected.double(), logits.double(), _TOLERANCE[model.dtype] / 10)


def _probe(runner: ModelRunner, pool: KVPool, tokens: list[int]) -> Tensor:
    slot, middle, last = pool.dummy_slot, len(tokens) // 2, len(tokens) - 1
    if middle:
        runner.forward([], [ScheduledTokens(slot, 0, tokens[:middle], wanted=0)])
    if middle < last:
        runner.forward([], [ScheduledTokens(slot, middle, tokens[middle:last], wanted=0)])
    return runner.forward([ScheduledTokens(slot, last, tokens[last:], wanted=1)], [])


def _close(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


def _dtype(settings: PreTrainedConfig, config: EngineConfig) -> Any:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    saved = getattr(settings, "dtype", None) or torch.float32
    return torch.float32 if config.device == "cpu" and saved in (torch.bfloat16, torch.float16) else saved
