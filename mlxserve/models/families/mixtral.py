"""Mixtral: Mistral's attention, and in every layer a mixture of experts whose weights are normalised."""

from __future__ import annotations

from mlxserve.models.config import Config
from mlxserve.models.families.common import attention, head_dim, layer_count, model, moe, sliding_window
from mlxserve.models.rope import make_rope
from mlxserve.models.spec import LayerNames, LayerSpec, ModelSpec

NAMES = LayerNames(
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts.{expert}",
    expert_parts=("w1", "w3", "w2"),
    stacked_experts="block_sparse_moe.switch_mlp",
)


def mixtral(c: Config, max_model_len: int) -> ModelSpec:
    width = head_dim(c)
    rope = make_rope(c, width, max_model_len, default_base=1e6)
    experts = moe(c, "num_local_experts", "intermediate_size", normalise=True)
    layer = LayerSpec(attention=attention(c, rope, width, window=sliding_window(c)), mlp=experts)
    return model(c, "mixtral", max_model_len, [layer] * layer_count(c), names=NAMES)
