"""Qwen2 (biases on q, k and v), Qwen3 (norms on q and k) and Qwen3-MoE."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import (
    attention,
    head_dim,
    layer_count,
    layer_windows,
    mlp,
    model,
    moe,
    sliding_window,
)
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerSpec, MlpSpec, ModelSpec, MoeSpec


def qwen2(c: Config, max_model_len: int) -> ModelSpec:
    width = head_dim(c)
    rope = make_rope(c, width, max_model_len)
    layers = [LayerSpec(attention=attention(c, rope, width, window=w), mlp=mlp(c)) for w in _windows(c)]
    return model(c, "qwen2", max_model_len, layers, qkv_bias=True)


def qwen3(c: Config, max_model_len: int) -> ModelSpec:
    width, bias = head_dim(c, 128), c.flag("attention_bias")
    rope = make_rope(c, width, max_model_len)
    specs = [attention(c, rope, width, window=w, qk_norm="head") for w in _windows(c)]
    layers = [LayerSpec(attention=s, mlp=mlp(c)) for s in specs]
    return model(c, "qwen3", max_model_len, layers, qkv_bias=bias, o_bias=bias)


def qwen3_moe(c: Config, max_model_len: int) -> ModelSpec:
    """Layers of ``mlp_only_layers``, and those that ``decoder_sparse_step`` skips, have a dense MLP."""
    width, bias = head_dim(c), c.flag("attention_bias")
    window = sliding_window(c) if c.flag("use_sliding_window") else None
    spec = attention(c, make_rope(c, width, max_model_len), width, window=window, qk_norm="head")
    dense, step, only = mlp(c), c.count("decoder_sparse_step", 1), c.ints("mlp_only_layers")
    key = "num_experts" if c.has("num_experts") else "num_local_experts"
    experts = moe(c, key, "moe_intermediate_size", normalise=c.flag("norm_topk_prob"))

    def block(i: int) -> MlpSpec | MoeSpec:
        return dense if i in only or (i + 1) % step else experts

    layers = [LayerSpec(attention=spec, mlp=block(i)) for i in range(layer_count(c))]
    return model(c, "qwen3_moe", max_model_len, layers, qkv_bias=bias, o_bias=bias)


def _windows(c: Config) -> list[int | None]:
    if not c.flag("use_sliding_window"):
        return [None] * layer_count(c)
    return layer_windows(c, lambda i: i >= c.count("max_window_layers", 28))
