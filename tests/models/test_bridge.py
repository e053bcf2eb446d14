"""Architectures that only mlx-lm has, over our pages, against mlx-lm's own caches and transformers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, quantize_model, save_model
from safetensors.numpy import load_file, save_file

from mlxserve.errors import CheckpointError, ConfigError
from mlxserve.formats.checkpoint import open_checkpoint
from tests.models.harness import MODES, Logits, Model, difference, oracle
from tests.models.matrix import Case, make, rope
from tests.tiny import MemoryCheckpoint, draw, write_json

TOLERANCE = 1e-4

CASES = (
    Case("starcoder2", config={"head_dim": None, "norm_epsilon": 1e-5, "use_bias": True}),
    Case("stablelm", config={"head_dim": None, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    Case("exaone4", config={"sliding_window": 8, "sliding_window_pattern": 4}),
    Case("cohere", config={"logit_scale": 0.5, "head_dim": 16, "tie_word_embeddings": True, **rope("default")}),
)
OLD_FORM = {
    "starcoder2": {"rope_theta": 10000.0, "sliding_window": None},
    "stablelm": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
    "exaone4": {"rope_theta": 10000.0, "rope_scaling": None, "sliding_window_pattern": "LLLG"},
    "cohere": {"rope_theta": 10000.0},
}


def checkpoint(case: Case, path: Path) -> Path:
    make(case, path)
    config = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", {**config, **OLD_FORM[case.family]})
    return path


def mlx_lm_logits(model: Any, prompts: list[list[int]]) -> list[Logits]:
    return [np.array(model(mx.array([p]), cache=make_prompt_cache(model))[0]) for p in prompts]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.family)
def test_logits_equal_mlx_lm_and_transformers(case: Case, tmp_path: Path) -> None:
    checkpoint(case, tmp_path)
    prompts = case.token_ids()
    model, _ = load_model(tmp_path)
    theirs = mlx_lm_logits(model, prompts)
    assert difference(theirs, oracle(tmp_path, prompts)) < TOLERANCE
    ours = Model(open_checkpoint(str(tmp_path)), "mlx")
    assert ours.loaded.library == "mlx-lm"
    for mode in MODES:
        assert difference(ours.logits(prompts, mode), theirs) < TOLERANCE, mode


def test_quantised(tmp_path: Path) -> None:
    model, config = load_model(checkpoint(CASES[0], tmp_path))
    model, config = quantize_model(model, config, 32, 4)
    (tmp_path / "model.safetensors").unlink()
    save_model(tmp_path, model)
    write_json(tmp_path / "config.json", config)
    prompts = CASES[0].token_ids()
    ours = Model(open_checkpoint(str(tmp_path)), "mlx")
    assert difference(ours.logits(prompts, "mixed"), mlx_lm_logits(model, prompts)) < TOLERANCE


class TestErrors:
    def load(self, path: Path, backend: str = "mlx", max_model_len: int | None = None) -> None:
        Model(open_checkpoint(str(path)), backend, max_model_len=max_model_len)

    def test_torch_has_no_bridge(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"model_type is 'starcoder2', but must be one of .*llama"):
            self.load(checkpoint(CASES[0], tmp_path), "torch")

    def test_weights_must_fit_exactly(self, tmp_path: Path) -> None:
        checkpoint(CASES[0], tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        bias = tensors.pop("model.layers.2.self_attn.q_proj.bias")
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"model\.layers\.2\.self_attn\.q_proj\.bias"):
            self.load(tmp_path)
        tensors |= {"model.layers.2.self_attn.q_proj.bias": bias, "model.layers.2.extra.weight": bias}
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"model\.layers\.2\.extra\.weight"):
            self.load(tmp_path)

    def test_a_config_that_mlx_lm_cannot_read(self, tmp_path: Path) -> None:
        checkpoint(CASES[0], tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        del config["hidden_size"]
        write_json(tmp_path / "config.json", config)
        with pytest.raises(CheckpointError, match=r"mlx-lm cannot load this starcoder2: .*hidden_size"):
            self.load(tmp_path)

    def test_the_length_is_limited(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--max-model-len is 129, but this model has 128 positions"):
            self.load(checkpoint(CASES[0], tmp_path), max_model_len=129)

    @pytest.mark.parametrize("name", ["no_such_model", "../llama", "os", "cache", ""])
    def test_only_mlx_lms_own_architectures_are_imported(self, name: str, tmp_path: Path) -> None:
        checkpoint(CASES[0], tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        write_json(tmp_path / "config.json", {**config, "model_type": name})
        with pytest.raises(CheckpointError, match="model_type"):
            self.load(tmp_path)


MINICPM3 = {
    "model_type": "minicpm3",
    "hidden_size": 64,
    "dim_model_base": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 96,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "kv_lora_rank": 32,
    "scale_depth": 1.4,
    "scale_emb": 2,
    "max_position_embeddings": 128,
    "rope_scaling": {
        "type": "longrope",
        "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0] * 4,
    },
}


def test_keys_wider_than_values() -> None:
    """Pages are as wide as the wider of the two."""
    module = importlib.import_module("mlx_lm.models.minicpm3")
    model = module.Model(module.ModelArgs.from_dict(MINICPM3))
    weights = draw({name: tuple(w.shape) for name, w in tree_flatten(model.parameters())})
    model.load_weights([(name, mx.array(w)) for name, w in weights.items()])
    prompts = CASES[0].token_ids()
    ours = Model(MemoryCheckpoint(MINICPM3, weights), "mlx")
    (probe, *_) = ours.loaded.decoder._probes
    assert probe.width != probe.v_width
    for mode in MODES:
        assert difference(ours.logits(prompts, mode), mlx_lm_logits(model, prompts)) < TOLERANCE, mode
