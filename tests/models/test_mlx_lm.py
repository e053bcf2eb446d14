"""The same checkpoints in mlx-lm's hands: its own models as a second oracle, and what it writes as our input.

mlx-lm reads configs of transformers 4's form and knows no windows in some families, so the cases here have neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.utils import load_model, quantize_model, save_model

from mlxserve.formats.checkpoint import open_checkpoint
from tests.models.harness import BACKENDS, MODES, Logits, Model, difference
from tests.models.matrix import CASES, Case, make
from tests.tiny import write_json

TOLERANCE = 1e-4
PLAIN = [c for c in CASES if not c.option]
OLD_FORM = {"rope_theta": 10000.0, "num_experts": 8, "sliding_window_pattern": 2, "no_rope_layer_interval": 4}
QUANTISED = ("llama", "qwen2", "qwen3_moe", "mixtral", "phi3", "gemma3_text")


def mlx_lm_model(case: Case, path: Path) -> tuple[Any, dict[str, Any]]:
    """Writes the checkpoint at ``path`` and loads it with mlx-lm."""
    config = {**case.config, "head_dim": 16, "sliding_window": 64, "layer_types": None}
    make(replace(case, config=config), path)
    written = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", *(["sliding_window"] if case.family == "mistral" else [])):
        written.pop(key, None)
    write_json(path / "config.json", {**OLD_FORM, **written, "sliding_window": written.get("sliding_window")})
    model, config = load_model(path)
    return model, config


def logits_of(model: Any, prompts: list[list[int]]) -> list[Logits]:
    return [np.array(model(mx.array([p]))[0]) for p in prompts]


@pytest.mark.parametrize("case", PLAIN, ids=lambda c: c.id)
def test_logits_equal_mlx_lm(case: Case, tmp_path: Path) -> None:
    model, _ = mlx_lm_model(case, tmp_path)
    want = logits_of(model, case.token_ids())
    for backend in BACKENDS:
        ours = Model(open_checkpoint(str(tmp_path)), backend)
        for mode in MODES:
            assert difference(ours.logits(case.token_ids(), mode), want) < TOLERANCE, (backend, mode)


def save_quantised(
    model: Any, config: dict[str, Any], path: Path, bits: int, group: int, predicate: Callable[..., Any] | None = None
) -> Any:
    """Quantises with mlx-lm and writes it as mlx-lm does. Returns the quantised model."""
    quantised, config = quantize_model(model, config, group, bits, quant_predicate=predicate)
    for old in path.glob("*.safetensors"):
        old.unlink()
    save_model(path, quantised)
    write_json(path / "config.json", config)
    return quantised


@pytest.mark.parametrize("family", QUANTISED)
def test_quantised_families(family: str, tmp_path: Path) -> None:
    case = next(c for c in PLAIN if c.family == family)
    model, config = mlx_lm_model(case, tmp_path)
    want = logits_of(save_quantised(model, config, tmp_path, 4, 32), case.token_ids())
    for backend in BACKENDS:
        ours = Model(open_checkpoint(str(tmp_path)), backend)
        for mode in ("prefill", "mixed"):
            assert difference(ours.logits(case.token_ids(), mode), want) < TOLERANCE, (backend, mode)


LLAMA_128 = Case("llama", config={"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2})


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_width_and_group(bits: int, group: int, tmp_path: Path) -> None:
    case = replace(LLAMA_128, config={**LLAMA_128.config, "tie_word_embeddings": bits % 2 == 0})
    model, config = mlx_lm_model(case, tmp_path)
    dense = logits_of(model, case.token_ids())
    want = logits_of(save_quantised(model, config, tmp_path, bits, group), case.token_ids())
    assert difference(dense, want) > 10 * TOLERANCE  # the comparison below can fail
    for backend in BACKENDS:
        ours = Model(open_checkpoint(str(tmp_path)), backend)
        assert difference(ours.logits(case.token_ids(), "mixed"), want) < TOLERANCE, backend


def mixed_widths(path: str, module: Any, *_: Any) -> bool | dict[str, int]:
    """More bits for v_proj and down_proj, none at all for k_proj and layer 1's gate: products of unequal parts."""
    if not isinstance(module, nn.Linear | nn.Embedding) or "k_proj" in path or path.endswith("1.mlp.gate_proj"):
        return False
    if "v_proj" in path or "down_proj" in path:
        return {"bits": 8, "group_size": 64}
    return {"bits": 3, "group_size": 32} if "embed" in path else True


def test_overrides_for_single_layers(tmp_path: Path) -> None:
    model, config = mlx_lm_model(LLAMA_128, tmp_path)
    want = logits_of(save_quantised(model, config, tmp_path, 4, 64, mixed_widths), LLAMA_128.token_ids())
    for backend in BACKENDS:
        ours = Model(open_checkpoint(str(tmp_path)), backend)
        for mode in ("prefill", "mixed"):
            assert difference(ours.logits(LLAMA_128.token_ids(), mode), want) < TOLERANCE, (backend, mode)


def test_the_memory_of_quantised_weights_is_theirs(tmp_path: Path) -> None:
    model, config = mlx_lm_model(LLAMA_128, tmp_path)
    save_quantised(model, config, tmp_path, 4, 64)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    mlx_bytes = Model(open_checkpoint(str(tmp_path)), "mlx").loaded.weight_bytes
    assert mlx_bytes == pytest.approx(size, rel=0.05)
    assert Model(open_checkpoint(str(tmp_path)), "torch").loaded.weight_bytes > 5 * mlx_bytes
