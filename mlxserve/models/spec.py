"""What a model is, as frozen data: shapes, options and the names of its weights.

Knows nothing of arrays, files or devices. A family (``models/families``) makes a ModelSpec from a config.json; the
decoder and the backends read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of the first ``dims`` values of each head; value i is paired with value i + dims / 2.

    The angle at position p is p * inv_freq[i], in float32. ``factor`` multiplies cosine and sine (YaRN, longrope).
    """

    inv_freq: tuple[float, ...]
    factor: float = 1.0

    @property
    def dims(self) -> int:
        return 2 * len(self.inv_freq)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One layer's attention. A query sees itself and the ``window - 1`` tokens before it, or all when None."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    qk_norm: Literal["head", "width"] | None = None  # RMS norm of q and k: each head, or all heads together

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """down(act(gate(x)) * up(x))"""

    width: int
    act: Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """``top_k`` of ``experts`` gated MLPs a token, weighted by the softmax of the router's logits.

    ``normalise``: the chosen weights are scaled to sum to one.
    """

    experts: int
    top_k: int
    normalise: bool
    width: int
    act: Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Names of one layer's weights, below ``model.layers.N.``; a norm that is None is not there."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")  # or one, fused
    o: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    attn_norm: str | None = "input_layernorm"
    attn_post_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_post_norm: str | None = None
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")  # or one, fused
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    experts: str = "mlp.experts.{expert}"  # one module an expert, as Hugging Face writes it ...
    expert_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    stacked_experts: str = "mlp.switch_mlp"  # ... or all in one tensor, as mlx-lm does, with parts named as below
    stacked_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    attention: AttentionSpec
    mlp: MlpSpec | MoeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer."""

    family: str
    hidden: int
    vocab: int
    eps: float  # of every RMS norm
    layers: tuple[LayerSpec, ...]
    max_model_len: int  # positions that the RoPE frequencies were made for
    tied: bool  # the head is the embedding
    names: LayerNames = LayerNames()
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norm_offset: float = 0.0  # added to every norm's stored weight (Gemma stores weight - 1)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what each block adds to the stream
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
