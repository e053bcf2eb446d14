"""OLMo 2: norms after each block instead of before it, and over all of q and of k."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, mlp, model
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerNames, LayerSpec, ModelSpec

NAMES = LayerNames(
    attn_norm=None,
    attn_post_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_post_norm="post_feedforward_layernorm",
)


def olmo2(c: Config, max_model_len: int) -> ModelSpec:
    width, bias = head_dim(c), c.flag("attention_bias")
    spec = attention(c, make_rope(c, width, max_model_len), width, qk_norm="width")
    layers = [LayerSpec(attention=spec, mlp=mlp(c))] * layer_count(c)
    return model(c, "olmo2", max_model_len, layers, names=NAMES, qkv_bias=bias, o_bias=bias)
