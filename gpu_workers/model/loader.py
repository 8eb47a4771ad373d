"""Loads a model and makes sure, before it serves anything, that this engine runs it faithfully."""

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
    """The engine cannot run this model faithfully; the message says why."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `max_length`: most tokens of a sequence; ids from `head.token_limit` on do not exist."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    pool: KVPool
    runner: ModelRunner
    head: OutputHead
    max_length: int

    def encode(self, text: str) -> list[int]:
        """The tokenizer's way to spell `text`, without special tokens; from any thread."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        # The wrapper sets padding and truncation on every call, which other threads' calls do not survive.
        if backend is not None:
            return backend.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode(text, add_special_tokens=False)


def load(model: str, config: EngineConfig) -> LoadedModel:
    """Loads `model`, a folder or a Hugging Face id, with its tokenizer and vocabulary. Raises UnsupportedModelError."""
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
    """Puts a model on its device and its KV pool. Raises UnsupportedModelError."""
    settings = model.config.get_text_config()
    max_length = min(config.max_length, getattr(settings, "max_position_embeddings", None) or config.max_length)
    check_supported(model)
    model = model.to(config.device).eval()  # type: ignore[arg-type]
    heads = settings.num_attention_heads
    pool = KVPool(
        layers=settings.num_hidden_layers,
        slots=config.slots,
        length=max_length,
        kv_heads=getattr(settings, "num_key_value_heads", None) or heads,
        head_dim=getattr(settings, "head_dim", None) or settings.hidden_size // heads,
        dtype=model.dtype,
        device=model.device,
    )
    logger.info("KV cache: %.2f GiB for %d slots of %d tokens", pool.nbytes / 2**30, config.slots, max_length)
    separable = verify(model, pool)
    head = OutputHead(model.get_output_embeddings(), token_limit(tokenizer, settings.vocab_size), separable=separable)
    return LoadedModel(
        model, tokenizer, vocabulary, pool, ModelRunner(model, pool, separable=separable), head, max_length
    )


def token_limit(tokenizer: Tokenizer, logits_width: int) -> int:
    """One past the largest id that is a token; embedding matrices are often padded beyond it."""
    return min(logits_width, max(tokenizer.get_vocab().values()) + 1)


def check_supported(model: PreTrainedModel) -> None:
    """Refuses, by name of the feature, what the attention function or the KV pool cannot honour."""
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
    """Compares this engine's step with the model's own attention, and tells whether the output head is separable.

    Runs a few tokens in the dummy slot, in two chunks and one decode step, sliding windows made so small that they
    matter. Catches what no configuration key names: attention sinks, position biases, unusual head shapes, windows that
    a model does not tell its attention function. Leaves the model on this engine's attention function.
    """
    tokens = [
        1 + i % (min(model.config.get_text_config().vocab_size, 1000) - 1)
        for i in range(min(_PROBE_TOKENS, pool.length))
    ]
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the others of transformers leave the cap out
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
        logger.warning("the output head is not a plain linear map: every row computes all its logits")
    return separable


@contextlib.contextmanager
def _small_windows(model: PreTrainedModel) -> Iterator[None]:
    """Sliding windows of half a probe: configurations have them for transformers' masks, layers for ours."""
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
    """Whether rows of the output embedding times the last hidden state are the model's logits."""
    head = model.get_output_embeddings()
    weight: Any = getattr(head, "weight", None)
    # A quantised one is a tensor of a class of its own.
    plain = isinstance(weight, Tensor) and type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()
    if not plain or weight.shape[1] != hidden.shape[1]:
        return False
    # A cap bends large logits only: the probe's may be too small to show it.
    if getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        return False
    projected = torch.nn.functional.linear(hidden, weight, getattr(head, "bias", None))
    # The same arithmetic twice, so much closer than two attention kernels are.
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
