"""What most families share, so that a family's own file says only what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mlxserve.models.config import Config
from mlxserve.models.spec import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, Rope

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def head_dim(c: Config, default: int | None = None) -> int:
    """``head_dim``, or ``default``, or hidden_size / num_attention_heads."""
    if c.has("head_dim") or default is not None:
        return c.count("head_dim", default)
    hidden, heads = c.count("hidden_size"), c.count("num_attention_heads")
    if hidden % heads:
        raise c.error("hidden_size", hidden, f"must be a multiple of num_attention_heads, {heads}")
    return hidden // heads


def attention(c: Config, rope: Rope | None, width: int, **own: Any) -> AttentionSpec:
    """Of heads of ``width``; scaled by 1 / sqrt(width) unless ``own`` has a scale."""
    heads = c.count("num_attention_heads")
    kv_heads = c.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise c.error("num_attention_heads", heads, f"must be a multiple of num_key_value_heads, {kv_heads}")
    own.setdefault("scale", width**-0.5)
    return AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=width, rope=rope, **own)


def mlp(c: Config, activation: str = "hidden_act", default: str = "silu") -> MlpSpec:
    return MlpSpec(width=c.count("intermediate_size"), act=c.one_of(activation, ACTIVATIONS, default))


def layer_count(c: Config) -> int:
    return c.count("num_hidden_layers", most=2**12)


def moe(c: Config, experts: str, width: str, normalise: bool) -> MoeSpec:
    """``experts`` and ``width`` are the config's keys for the number of experts and for the width of each."""
    count = c.count(experts)
    return MoeSpec(
        experts=count,
        top_k=c.count("num_experts_per_tok", most=count),
        normalise=normalise,
        width=c.count(width),
        act=c.one_of("hidden_act", ACTIVATIONS, "silu"),
    )


def sliding_window(c: Config) -> int | None:
    return c.count("sliding_window") if c.has("sliding_window") else None


def layer_windows(c: Config, slides: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window, from ``layer_types``, or where there are none by ``slides`` of the layer's number."""
    count = layer_count(c)
    if c.has("layer_types"):
        types = [_LAYER_TYPES.get(word) for word in c.words("layer_types", count)]
        if None in types:
            raise c.error("layer_types", c.values["layer_types"], f"may only have {' and '.join(_LAYER_TYPES)}")
    else:
        types = [slides(i) for i in range(count)]
    return [c.count("sliding_window") if sliding else None for sliding in types]


_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def model(
    c: Config, family: str, max_model_len: int, layers: Iterable[LayerSpec], *, tied: bool = False, **own: Any
) -> ModelSpec:
    """``tied`` holds when config.json does not say."""
    return ModelSpec(
        family=family,
        hidden=c.count("hidden_size"),
        vocab=c.count("vocab_size"),
        eps=c.number("rms_norm_eps", 1e-6),
        layers=tuple(layers),
        max_model_len=max_model_len,
        tied=c.flag("tie_word_embeddings", tied),
        **own,
    )
