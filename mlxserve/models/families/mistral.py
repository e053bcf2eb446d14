"""Mistral: Llama's layers with a sliding window. A config without the key means 4096, one with null none."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, mlp, model, sliding_window
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerSpec, ModelSpec


def mistral(c: Config, max_model_len: int) -> ModelSpec:
    width = head_dim(c)
    window = sliding_window(c) if "sliding_window" in c.values else 4096
    layer = LayerSpec(attention=attention(c, make_rope(c, width, max_model_len), width, window=window), mlp=mlp(c))
    return model(c, "mistral", max_model_len, [layer] * layer_count(c))
