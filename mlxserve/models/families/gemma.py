"""Gemma 2 and 3: norms stored less one and on both sides of each block, scaled embeddings, windows that alternate with
full attention; soft caps in 2, norms on q and k and another RoPE for each type of layer in 3."""

from __future__ import annotations

from typing import Any

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_windows, mlp, model
from mlxserve.models.rope import make_rope, rope_section
from mlxserve.models.spec import LayerNames, LayerSpec, ModelSpec, Rope

NAMES = LayerNames(
    attn_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def gemma2(c: Config, max_model_len: int) -> ModelSpec:
    rope = make_rope(c, head_dim(c, 256), max_model_len)
    return _gemma(c, "gemma2", max_model_len, every=2, full=rope, local=rope)


def gemma3(c: Config, max_model_len: int) -> ModelSpec:
    width = head_dim(c, 256)
    full = make_rope(c, width, max_model_len, layer_type="full_attention", default_base=1e6)
    return _gemma(
        c,
        "gemma3",
        max_model_len,
        every=c.count("sliding_window_pattern", 6),
        full=full,
        local=_local_rope(c, width, max_model_len),
        qk_norm="head",
    )


def _local_rope(c: Config, width: int, max_model_len: int) -> Rope:
    """Older configs stretch full attention only: their ``rope_scaling`` is not for these layers."""
    base = c.number("rope_local_base_freq", 1e4)
    kind = "sliding_attention"
    if not (c.has("rope_parameters") and c.section("rope_parameters").has(kind)):
        return make_rope(Config({"rope_theta": base}), width, max_model_len)
    return make_rope(c, width, max_model_len, layer_type=kind, base=rope_section(c, kind).number("rope_theta", base))


def _gemma(c: Config, family: str, max_model_len: int, *, every: int, full: Rope, local: Rope, **own: Any) -> ModelSpec:
    """Every so many layers one has full attention."""
    c.refuse("use_bidirectional_attention", False)
    own["scale"] = c.number("query_pre_attn_scalar", 256) ** -0.5
    own["soft_cap"] = c.optional_number("attn_logit_softcapping")
    width, bias = head_dim(c, 256), c.flag("attention_bias")
    dense = mlp(c, "hidden_activation", "gelu_pytorch_tanh")
    windows = layer_windows(c, lambda i: (i + 1) % every != 0)
    specs = [attention(c, full if w is None else local, width, window=w, **own) for w in windows]
    return model(
        c,
        family,
        max_model_len,
        [LayerSpec(attention=s, mlp=dense) for s in specs],
        tied=True,
        names=NAMES,
        qkv_bias=bias,
        o_bias=bias,
        norm_offset=1.0,
        embedding_scale=c.count("hidden_size") ** 0.5,
        logit_soft_cap=c.optional_number("final_logit_softcapping"),
    )
