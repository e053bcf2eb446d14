"""SmolLM3: Llama's layers, some of them without positions (NoPE)."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, layer_windows, mlp, model
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerSpec, ModelSpec


def smollm3(c: Config, max_model_len: int) -> ModelSpec:
    """``no_rope_layers`` has a 1 for each layer with RoPE; without it every so many layers one has none."""
    width, bias, count = head_dim(c), c.flag("attention_bias"), layer_count(c)
    every = c.count("no_rope_layer_interval", 4)
    rotated = c.ints("no_rope_layers") or tuple(int((i + 1) % every != 0) for i in range(count))
    if len(rotated) < count:
        raise c.error("no_rope_layers", list(rotated), f"must have an entry for each of the {count} layers")
    rope = make_rope(c, width, max_model_len, default_base=2e6)
    sliding = c.flag("use_sliding_window") and c.has("sliding_window")
    windows = layer_windows(c, lambda i: not rotated[i]) if sliding else [None] * count
    specs = [attention(c, rope if r else None, width, window=w) for r, w in zip(rotated, windows, strict=False)]
    return model(
        c,
        "smollm3",
        max_model_len,
        [LayerSpec(attention=s, mlp=mlp(c)) for s in specs],
        tied=True,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=c.flag("mlp_bias"),
    )
