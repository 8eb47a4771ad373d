"""Llamas with random weights and real vocabularies, in files that vLLM can load. They are as slow as real models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mistral_common
import torch
from transformers import AutoTokenizer
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

from benchmarks.gpu.models import SHAPES, random_llama

# Name -> number of tokens. 32k: SentencePiece; 131k: Tekken, a byte-level BPE. Both are Mistral's.
VOCABULARIES = {"32k": 32_768, "131k": 131_072}

_DATA = Path(mistral_common.__file__).parent / "data"
_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
_LENGTH = 2048


def save_random_llama(folder: Path, vocabulary: str, shape: str = "small") -> Path:
    """Save a Llama and its tokenizer.

    Args:
        folder: Folder of the model and the tokenizer, which is created.
        vocabulary: A key of `VOCABULARIES`.
        shape: A key of `benchmarks.gpu.models.SHAPES`. "small" is saved with weights. Other shapes are saved without
            weights, and vLLM must make random ones (`load_format: dummy`).

    Returns:
        `folder`.
    """
    tokenizer = _tekken() if vocabulary == "131k" else _sentencepiece(folder)
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    tokens = VOCABULARIES[vocabulary]
    if shape == "small":
        random_llama(SHAPES[shape], tokens, _LENGTH, torch.float32, torch.device("cpu")).save_pretrained(folder)
    else:
        config = SHAPES[shape].config(tokens, _LENGTH, architectures=["LlamaForCausalLM"], dtype="bfloat16")
        config.save_pretrained(folder)
    return folder


def _tekken() -> Any:
    return convert_tekken_tokenizer(str(_DATA / "tekken_240911.json"))


def _sentencepiece(folder: Path) -> Any:
    folder.mkdir(parents=True)
    shutil.copy(_DATA / "mistral_instruct_tokenizer_240323.model.v3", folder / "tokenizer.model")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **special}))
    return AutoTokenizer.from_pretrained(folder)
