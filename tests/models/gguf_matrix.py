"""Which GGUF files are held against transformers: a row for each family, and for its options.

``docs/models.md`` is generated from this table.
"""

from __future__ import annotations

from tests.models.matrix import CAPS, GEMMA, GRANITE, LONG, MOE, QWEN_MOE, WINDOW, Case, rope

LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
# GGUF does not store what Gemma's queries are scaled by: it is the head's width.
GEMMA_GGUF = {**GEMMA, "query_pre_attn_scalar": 32}
NARROW = {"head_dim": 16}  # hidden / heads, which is what files that do not say mean
PHI_LONG = {
    **NARROW,
    "original_max_position_embeddings": 64,
    **rope("longrope", **LONG, partial_rotary_factor=0.5, original_max_position_embeddings=64),
}
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
}

CASES = (
    Case("llama"),
    Case("llama", "biases", config={"attention_bias": True}),
    Case("llama", "rope llama3", config=LLAMA3),
    Case("llama", "rope linear", config=rope("linear", factor=4.0)),
    Case("llama", "rope yarn", config=rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    Case("mistral", config={"sliding_window": None}),
    Case("mistral", "window", config=WINDOW),
    Case("mixtral", config={"sliding_window": None, **MOE}),
    Case("qwen2"),
    Case("qwen2", "rope yarn", config=rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    Case("qwen3"),
    Case("qwen3", "tied", config={"tie_word_embeddings": True}),
    Case("qwen3_moe", config=QWEN_MOE),
    Case("gemma2", config={**GEMMA_GGUF, **CAPS}),
    Case("gemma3_text", config={**GEMMA_GGUF, "num_hidden_layers": 7, "rope_parameters": GEMMA_ROPES}),
    Case("phi3", config={"sliding_window": None, **NARROW}),
    Case("phi3", "window", config={**WINDOW, **NARROW}),
    Case("phi3", "partial rotary and longrope short", config=PHI_LONG, max_model_len=64),
    Case("phi3", "partial rotary and longrope long", config=PHI_LONG, max_model_len=128, prompts=(65, 100)),
    Case("smollm3"),
    Case("olmo2"),
    Case("granite", config={**GRANITE, **NARROW}),
)
