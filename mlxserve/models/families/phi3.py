"""Phi-3 and Phi-4-mini: q, k and v in one tensor, gate and up in another, part of a head rotated, longrope."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, mlp, model, sliding_window
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerNames, LayerSpec, ModelSpec

NAMES = LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def phi3(c: Config, max_model_len: int) -> ModelSpec:
    width = head_dim(c)
    rope = make_rope(c, width, max_model_len, partial=True)
    layer = LayerSpec(attention=attention(c, rope, width, window=sliding_window(c)), mlp=mlp(c))
    return model(c, "phi3", max_model_len, [layer] * layer_count(c), names=NAMES)
