"""Which models are held against transformers: a row for each family, and for each option that a family may have.

Adding a family means adding a row. ``docs/models.md`` is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import draw

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@dataclass(frozen=True)
class Case:
    """``models``: names people know; ``option``: what this row shows beside the family's plain form."""

    family: str
    option: str = ""
    models: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None
    prompts: tuple[int, ...] = (1, 6, 13, 40)  # lengths

    @property
    def id(self) -> str:
        return f"{self.family}-{self.option.replace(' ', '_')}" if self.option else self.family

    def token_ids(self) -> list[list[int]]:
        return [np.random.default_rng(i).integers(2, 96, n).tolist() for i, n in enumerate(self.prompts)]


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


WINDOW = {"sliding_window": 8}
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
LONG = {"short_factor": [1.0, 1.1, 1.3, 1.4], "long_factor": [1.0, 2.0, 4.0, 5.0]}
PHI_LONG = {
    "head_dim": 16,
    "original_max_position_embeddings": 64,
    **rope("longrope", **LONG, partial_rotary_factor=0.5, original_max_position_embeddings=64),
}
MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True}
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}
GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}

CASES = (
    Case("llama", models="Llama 2 to 3.3, SmolLM2, TinyLlama, Yi, DeepSeek-Coder"),
    Case("llama", "biases", config={"attention_bias": True, "mlp_bias": True}),
    Case("llama", "rope llama3", config=LLAMA3),
    Case("llama", "rope linear", config=rope("linear", factor=4.0)),
    Case("llama", "rope yarn", config=rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    Case("llama", "rope dynamic", config=rope("dynamic", factor=4.0), max_model_len=128),
    Case(
        "llama",
        "rope dynamic past the trained length",
        config=rope("dynamic", factor=4.0),
        max_model_len=150,
        prompts=(150,),
    ),
    Case("mistral", models="Mistral 7B, Ministral, Mistral NeMo and Small", config={"sliding_window": None}),
    Case("mistral", "window", config=WINDOW),
    Case("mixtral", models="Mixtral 8x7B", config={"sliding_window": None, **MOE}),
    Case("mixtral", "window", config={**WINDOW, **MOE}),
    Case("qwen2", models="Qwen2, Qwen2.5 and its Coder and Math"),
    Case("qwen2", "windows from a layer on", config={"use_sliding_window": True, "max_window_layers": 2, **WINDOW}),
    Case("qwen3", models="Qwen3 0.6B to 32B"),
    Case("qwen3", "tied", config={"tie_word_embeddings": True}),
    Case("qwen3_moe", models="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder", config=QWEN_MOE),
    Case(
        "qwen3_moe",
        "dense layers between",
        config={**QWEN_MOE, "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    ),
    Case("phi3", models="Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini", config={"sliding_window": None}),
    Case("phi3", "window", config=WINDOW),
    Case("phi3", "partial rotary and longrope short", config=PHI_LONG, max_model_len=64),
    Case("phi3", "partial rotary and longrope long", config=PHI_LONG, max_model_len=128, prompts=(65, 100)),
    Case("gemma2", models="Gemma 2 2B, 9B, 27B", config={**GEMMA, **CAPS}),
    Case(
        "gemma2", "without soft caps", config={**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    Case("gemma3_text", models="Gemma 3 270M to 27B (text)", config=GEMMA),
    Case(
        "gemma3_text",
        "rope for each type",
        config={
            **GEMMA,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
            },
        },
    ),
    Case("smollm3", models="SmolLM3 3B"),
    Case("smollm3", "windows", config={"use_sliding_window": True, **WINDOW, "tie_word_embeddings": True}),
    Case("olmo2", models="OLMo 2 1B to 32B"),
    Case("granite", models="Granite 3.0 to 3.3", config=GRANITE),
)


def make(case: Case, directory: Path) -> Path:
    """The case's checkpoint as transformers writes it, with weights as ``tests.tiny`` draws them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(case.family, **{**BASE, **case.config})
    model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    weights = draw(shapes, norm_mean=0.0 if case.family.startswith("gemma") else 1.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    model.save_pretrained(directory)
    return directory
