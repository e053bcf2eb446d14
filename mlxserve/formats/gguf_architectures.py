"""GGUF architectures: a row each with its family, its tensor names, and what the converter changed.

Knows no metadata and no data. Sources: the ``gguf`` package's tensor names, and llama.cpp's conversion scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """``outer`` and ``inner``: names without and within a layer, GGUF's to Hugging Face's.

    ``permuted``: per-layer names whose rows the converter moved from Hugging Face's half-split RoPE order to the
    interleaved one, and whether they have the query's or the key's number of heads. ``norm_offset``: what it added to
    the weight of every norm.
    """

    model_type: str
    inner: Mapping[str, str]
    outer: Mapping[str, str] = field(
        default_factory=lambda: {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        }
    )
    permuted: Mapping[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0


_PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS_BEFORE = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_NORMS_AROUND = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm", **_NORMS_AFTER}
_LLAMA = {**_NORMS_BEFORE, **_PROJECTIONS, **_MLP}
_INTERLEAVED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def _experts(module: str) -> dict[str, str]:
    """All experts of a layer in one tensor."""
    stacked = {f"ffn_{part}_exps": f"{module}.switch_mlp.{part}_proj" for part in ("gate", "up", "down")}
    return {"ffn_gate_inp": f"{module}.gate", **stacked}


ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma2": Architecture(model_type="gemma2", inner={**_NORMS_AROUND, **_PROJECTIONS, **_MLP}, norm_offset=1.0),
    "gemma3": Architecture(
        model_type="gemma3_text", inner={**_NORMS_AROUND, **_PROJECTIONS, **_QK_NORMS, **_MLP}, norm_offset=1.0
    ),
    "granite": Architecture(model_type="granite", inner=_LLAMA, permuted=_INTERLEAVED),
    "llama": Architecture(model_type="llama", inner=_LLAMA, permuted=_INTERLEAVED),
    "olmo2": Architecture(model_type="olmo2", inner={**_NORMS_AFTER, **_PROJECTIONS, **_QK_NORMS, **_MLP}),
    "phi3": Architecture(
        model_type="phi3",
        inner={
            **_NORMS_BEFORE,
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "qwen2": Architecture(model_type="qwen2", inner=_LLAMA),
    "qwen3": Architecture(model_type="qwen3", inner={**_LLAMA, **_QK_NORMS}),
    "qwen3moe": Architecture(
        model_type="qwen3_moe", inner={**_NORMS_BEFORE, **_PROJECTIONS, **_QK_NORMS, **_experts("mlp")}
    ),
    "smollm3": Architecture(model_type="smollm3", inner=_LLAMA, permuted=_INTERLEAVED),
}
# What the architecture llama is when it has experts.
MIXTRAL = Architecture(
    model_type="mixtral",
    inner={**_NORMS_BEFORE, **_PROJECTIONS, **_experts("block_sparse_moe")},
    permuted=_INTERLEAVED,
)
