"""Llama, and what keeps its layout: SmolLM2, TinyLlama, Yi, DeepSeek-Coder and many more."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, mlp, model
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerSpec, ModelSpec


def llama(c: Config, max_model_len: int) -> ModelSpec:
    bias = c.flag("attention_bias")
    layer = LayerSpec(attention=attention(c, make_rope(c, head_dim(c), max_model_len)), mlp=mlp(c))
    return model(
        c,
        "llama",
        max_model_len,
        [layer] * layer_count(c),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
    )
