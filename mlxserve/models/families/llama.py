"""Llama, and what keeps its layout: SmolLM2, TinyLlama, Yi, DeepSeek-Coder and many more."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, mlp, model
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerSpec, ModelSpec


def llama(c: Config, max_model_len: int) -> ModelSpec:
    width, bias = head_dim(c), c.flag("attention_bias")
    layer = LayerSpec(attention=attention(c, make_rope(c, width, max_model_len), width), mlp=mlp(c))
    return model(
        c,
        "llama",
        max_model_len,
        [layer] * layer_count(c),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
    )
