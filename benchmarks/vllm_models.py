"""Random Llamas with real vocabularies in the layout that vLLM loads; they say nothing, and take as long as a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mistral_common
from transformers import AutoTokenizer, LlamaConfig
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

from benchmarks.gpu.models import SHAPES
from benchmarks.replay import random_llama

VOCABULARIES = {"32k": 32_768, "131k": 131_072}
"""Name -> tokens: SentencePiece, and Tekken, a byte-level BPE; both are Mistral's."""

_DATA = Path(mistral_common.__file__).parent / "data"
_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def save_random_llama(folder: Path, vocabulary: str, shape: str = "small") -> Path:
    """A Llama in `folder`, which is made; `vocabulary` is one of `VOCABULARIES`.

    `shape`: "small" is the model of `replay`; others, of `benchmarks.gpu.models`, have no weights in the folder: vLLM
    makes them up (`load_format: dummy`).
    """
    tokenizer = _tekken() if vocabulary == "131k" else _sentencepiece(folder)
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    common = {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    if shape == "small":
        random_llama(VOCABULARIES[vocabulary], **common).save_pretrained(folder)
        return folder
    sizes = SHAPES[shape]
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=VOCABULARIES[vocabulary],
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        **common,
    ).save_pretrained(folder)
    return folder


def _tekken() -> Any:
    return convert_tekken_tokenizer(str(_DATA / "tekken_240911.json"))


def _sentencepiece(folder: Path) -> Any:
    folder.mkdir(parents=True)
    shutil.copy(_DATA / "mistral_instruct_tokenizer_240323.model.v3", folder / "tokenizer.model")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **special}))
    return AutoTokenizer.from_pretrained(folder)
