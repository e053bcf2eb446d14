"""Hugging Face checkpoints as GGUF files: names by the ``gguf`` package's tables, the rest as llama.cpp's scripts do.

Nothing of mlxserve is used, so that it can be held against these files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[Any]
Quantize = Callable[[str, Array], tuple[Array, Kind]]  # GGUF name and values to bytes and their type

ARCHITECTURES = {
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "granite": "granite",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
}
INTERLEAVED = ("llama", "granite", "smollm3")
_KINDS = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
_EXPERT = re.compile(r"model\.layers\.(\d+)\.(mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")


def write(
    checkpoint: Path,
    target: Path,
    quantize: Quantize | None = None,
    permute: bool | None = None,
    norm_offset: bool = True,
    **metadata: float | str,
) -> Path:
    """``permute`` overrules what the architecture's converter does; ``metadata`` are keys of the architecture, with a
    double underscore for each dot."""
    config = json.loads((checkpoint / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(target, arch)
    _write_metadata(writer, config, arch)
    for key, value in metadata.items():
        full = f"{arch}.{key.replace('__', '.')}"
        kinds = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}
        writer.kv_data[0].pop(full, None)
        writer.add_key_value(full, value, kinds[type(value)])
    _write_tokenizer(writer, config["vocab_size"])
    permuted = arch in INTERLEAVED if permute is None else permute
    for name, values in _tensors(load_file(checkpoint / "model.safetensors"), config, arch):
        part = name.split(".")[-2]
        if permuted and part in ("attn_q", "attn_k"):
            values = interleaved(values, config[f"num_{'attention' if part == 'attn_q' else 'key_value'}_heads"])
        if arch.startswith("gemma") and name.endswith("norm.weight") and norm_offset:
            values = values + 1
        raw, kind = quantize(name, values) if quantize and values.ndim > 1 else (values, Kind.F32)
        writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def interleaved(rows: Array, heads: int) -> Array:
    """Row i of a head's first half and row i of its second half become neighbours."""
    out = np.empty_like(rows)
    width = len(rows) // heads
    for head in range(heads):
        for i in range(width // 2):
            out[head * width + 2 * i] = rows[head * width + i]
            out[head * width + 2 * i + 1] = rows[head * width + width // 2 + i]
    return out


def _tensors(stored: Mapping[str, Array], config: Mapping[str, Any], arch: str) -> list[tuple[str, Array]]:
    names = gguf.get_tensor_name_map(_KINDS[arch], config["num_hidden_layers"])
    out: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, values in stored.items():
        if match := _EXPERT.fullmatch(name):
            layer, module, expert, part = match.groups()
            whole = f"model.layers.{layer}.mlp.experts.{part}.weight"
            if module == "block_sparse_moe":
                whole = f"layers.{layer}.feed_forward.experts.{part}.weight"
            experts.setdefault(whole, {})[int(expert)] = values
        else:
            out[name] = values
    out |= {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()}
    found = []
    for name, values in out.items():
        translated = names.get_name(name, (".weight", ".bias"))
        assert translated is not None, name
        found.append((translated, values))
    return found + _rope_factors(config)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    parameters = config.get("rope_parameters") or {}
    return dict(parameters.get("full_attention", parameters))


def _rope_factors(config: Mapping[str, Any]) -> list[tuple[str, Array]]:
    rope = _rope(config)
    if rope.get("rope_type") == "longrope":
        return [(f"rope_factors_{k}.weight", np.array(rope[f"{k}_factor"], np.float32)) for k in ("long", "short")]
    if rope.get("rope_type") != "llama3":
        return []
    divisors = []
    for i in range(0, config["head_dim"], 2):
        length = 2 * math.pi * rope["rope_theta"] ** (i / config["head_dim"])
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] / length
        smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        divisors.append(1 if length < high else rope["factor"] if length > low else between)
    return [("rope_freqs.weight", np.array(divisors, np.float32))]


def _write_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], arch: str) -> None:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    width = config.get("head_dim") or hidden // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if arch not in ("phi3", "granite"):
        writer.add_key_length(width)
        writer.add_value_length(width)
    if not arch.startswith("gemma"):
        writer.add_rope_dimension_count(int(_rope(config).get("partial_rotary_factor", 1.0) * width))
    if arch != "gemma2":
        writer.add_rope_freq_base(_rope(config).get("rope_theta", 10000.0))
    if window := config.get("sliding_window"):
        writer.add_sliding_window(window)
    if (scale := config.get("final_logit_softcapping")) is not None:
        writer.add_final_logit_softcapping(scale)
    if (scale := config.get("attn_logit_softcapping")) is not None:
        writer.add_attn_logit_softcapping(scale)
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if experts := config.get("num_experts") or config.get("num_local_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if size := config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(size)
    _write_scaling(writer, config)


def _write_scaling(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    rope = _rope(config)
    match rope.get("rope_type"):
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        case "longrope":
            original = rope["original_max_position_embeddings"]
            scale = config["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _write_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
