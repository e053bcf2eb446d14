"""Granite 3: Llama's layers with a multiplier on embeddings, attention, residuals and logits."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, mlp, model
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerSpec, ModelSpec


def granite(c: Config, max_model_len: int) -> ModelSpec:
    width, bias = head_dim(c), c.flag("attention_bias")
    rope = make_rope(c, width, max_model_len)
    layer = LayerSpec(attention=attention(c, rope, width, scale=c.number("attention_multiplier", 1.0)), mlp=mlp(c))
    return model(
        c,
        "granite",
        max_model_len,
        [layer] * layer_count(c),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
        embedding_scale=c.number("embedding_multiplier", 1.0),
        residual_scale=c.number("residual_multiplier", 1.0),
        logit_scale=1 / c.number("logits_scaling", 1.0),
    )
