"""Converts the embedded model to GGUF, for llama.cpp: `python -m models.to_gguf OUTPUT` (see models/README.md).

The package `gguf` is needed, and PyTorch is not. The weights are stored as float32.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "turnstile-tiny"
# The tokenizer of llama.cpp that splits a text only at digits. The model's own tokenizer also splits between letters
# and other characters. No merge joins these, so both encode a text as the same tokens.
_PRE_TOKENIZER = "superbpe"


def convert(output: Path, folder: Path = FOLDER) -> None:
    """Write a model in the GGUF format.

    Args:
        output: The file to write.
        folder: Folder of the model, in the layout of `transformers`: Llama with tied embeddings, stored as bfloat16.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(output, "llama")
    writer.add_name(folder.name)
    writer.add_license("apache-2.0")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weights in _tensors(folder / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            weights = _interleaved(weights, heads)
        writer.add_tensor(names.get_name(name, (".weight",)), weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    pieces = {number: piece for piece, number in tokenizer["model"]["vocab"].items()}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_PRE_TOKENIZER)
    writer.add_token_list([pieces[number] for number in range(config["vocab_size"])])
    writer.add_token_types([kinds.CONTROL if n in special else kinds.NORMAL for n in range(config["vocab_size"])])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a safetensors file, all of bfloat16, which numpy does not have, as float32."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:start])
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        halves = np.frombuffer(data[start + begin : start + end], np.uint16)
        found[name] = (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return found


def _interleaved(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of a projection for llama.cpp, which rotates neighbors (2 i, 2 i + 1) instead of halves."""
    halves = weights.reshape(heads, 2, -1, weights.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the file to write, such as turnstile-tiny.gguf")
    convert(parser.parse_args().output)
