"""GGUF metadata as the model's config.json would say it.

Knows the metadata keys; what a config means is for ``models/``. Sources: llama.cpp's conversion scripts for what is
written, its model loaders for what holds when a key is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlxserve.errors import CheckpointError
from mlxserve.formats.gguf import GGUFFile
from mlxserve.formats.gguf_architectures import ARCHITECTURES, MIXTRAL, Architecture
from mlxserve.formats.gguf_rope import partial_rotary_factor, rope_scaling

Config = dict[str, Any]


def architecture(file: GGUFFile) -> Architecture:
    """Raises CheckpointError naming the architecture if it has no row."""
    name = file.string("general.architecture")
    if name is None or name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{file.path}: the GGUF architecture {name!r} is not supported; supported are {known}")
    if name == "llama" and (file.integer("llama.expert_count") or 0) > 0:
        return MIXTRAL
    return ARCHITECTURES[name]


def config(file: GGUFFile) -> Config:
    """The model's config.json as Hugging Face would write it. Raises CheckpointError naming a missing key, or one with
    a value that the architecture's family does not have."""
    row = architecture(file)
    keys = _Keys(file, file.string("general.architecture") or "")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: the tensor 'token_embd.weight' is missing or not a matrix")
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    out: Config = {
        "model_type": row.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": keys.count("block_count"),
        "intermediate_size": keys.count("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": keys.count("attention.key_length", max(1, hidden // heads)),
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.positive("rope.freq_base", 10000.0),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }
    if keys.count("attention.value_length", out["head_dim"]) != out["head_dim"]:
        raise keys.error("attention.value_length", f"must be attention.key_length, {out['head_dim']}")
    if any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_k", "attn_v", "attn_output")):
        out["attention_bias"] = True
    share = partial_rotary_factor(file, keys.prefix, out["head_dim"])
    if share is not None:
        out["partial_rotary_factor"] = share
    scaling = rope_scaling(file, keys.prefix, out)
    if scaling:
        out["rope_scaling"] = scaling
    return out | _OWN.get(row.model_type, _no_window)(keys, out)


@dataclass(frozen=True, slots=True)
class _Keys:
    """One architecture's metadata."""

    file: GGUFFile
    prefix: str

    def count(self, key: str, default: int | None = None) -> int:
        return self.file.positive_integer(f"{self.prefix}.{key}", default)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.file.number(f"{self.prefix}.{key}")
        if value is None and default is not None:
            return default
        if value is None:
            raise CheckpointError(f"{self.file.path}: the GGUF metadata lacks {self.prefix}.{key}")
        if not 0 < value < math.inf:
            raise self.error(key, "must be above 0 and finite")
        return value

    def optional(self, key: str) -> float | None:
        """A number above 0; None when absent or 0, which is how some converters say "none"."""
        return self.positive(key) if self.file.number(f"{self.prefix}.{key}") else None

    def window(self) -> int | None:
        """Tokens of the sliding window; None when absent, 0 or at least the context, where it hides nothing."""
        value = self.file.integer(f"{self.prefix}.attention.sliding_window") or 0
        return value if 0 < value < self.count("context_length") else None

    def error(self, key: str, limit: str) -> CheckpointError:
        full = f"{self.prefix}.{key}"
        return CheckpointError(f"{self.file.path}: {full} is {self.file.metadata.get(full)}, but {limit}")


def _no_window(keys: _Keys, _config: Config) -> Config:
    if keys.window() is not None:
        raise keys.error("attention.sliding_window", f"{keys.prefix} with a sliding window is not supported")
    return {}


def _llama(keys: _Keys, _config: Config) -> Config:
    """Mistral is stored as llama; where a file has its window, only that family knows one."""
    window = keys.window()
    return {} if window is None else {"model_type": "mistral", "sliding_window": window}


def _mixtral(keys: _Keys, _config: Config) -> Config:
    return {
        "num_local_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
        "sliding_window": keys.window(),
    }


def _qwen3_moe(keys: _Keys, config: Config) -> Config:
    """The converter does not write whether the weights of the chosen experts are normalised; released models do it."""
    return _no_window(keys, config) | {
        "num_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _phi3(keys: _Keys, _config: Config) -> Config:
    return {"sliding_window": keys.window()}


def _gemma(keys: _Keys, config: Config, every: int, layers_of_27b: int) -> Config:
    """The converter writes neither what queries are scaled by, which is the head's width in all sizes but 27B, nor that
    every so many layers one has full attention."""
    pattern = keys.file.metadata.get(f"{keys.prefix}.attention.sliding_window_pattern", every)
    if pattern != every:
        raise keys.error("attention.sliding_window_pattern", f"only {every} is supported")
    largest = config["num_hidden_layers"] == layers_of_27b
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if largest
        else config["head_dim"],
        "hidden_activation": "gelu_pytorch_tanh",
        "torch_dtype": "bfloat16",  # what it was trained in: activations may pass the largest float16
    }


def _gemma2(keys: _Keys, config: Config) -> Config:
    return _gemma(keys, config, 2, 46) | {
        "sliding_window": keys.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.positive("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.positive("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: _Keys, config: Config) -> Config:
    out = _gemma(keys, config, 6, 62)
    out["rope_local_base_freq"] = keys.positive("rope.freq_base_swa", 10000.0)
    out["final_logit_softcapping"] = keys.optional("final_logit_softcapping")
    window = keys.file.integer(f"{keys.prefix}.attention.sliding_window")
    if window:
        out["sliding_window"] = keys.count("attention.sliding_window")
    else:
        out["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    return out


def _granite(keys: _Keys, config: Config) -> Config:
    return _no_window(keys, config) | {
        "attention_multiplier": keys.positive("attention.scale"),
        "embedding_multiplier": keys.positive("embedding_scale", 1.0),
        "residual_multiplier": keys.positive("residual_scale", 1.0),
        "logits_scaling": keys.positive("logit_scale", 1.0),
    }


_OWN: Mapping[str, Callable[[_Keys, Config], Config]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "granite": _granite,
    "llama": _llama,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen3_moe": _qwen3_moe,
}
