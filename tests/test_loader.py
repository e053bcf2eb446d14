"""Loading is strict: every tensor is needed, there, of the right shape, and read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from mlxserve.backends import get_backend
from mlxserve.backends.torch.linear import packs
from mlxserve.errors import CheckpointError, ConfigError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.loader import checkpoint_dtype, load_model
from tests.models.harness import BACKENDS, Model, difference, oracle
from tests.tiny import LLAMA, MemoryCheckpoint, llama_weights, make_llama

UNTIED = {**LLAMA, "tie_word_embeddings": False}
PROMPT = [[5, 17, 203, 44, 91, 8, 120, 3, 77]]


def load(config: dict[str, Any], weights: dict[str, np.ndarray], backend: str = "torch") -> None:
    load_model(MemoryCheckpoint(config, weights), get_backend(backend, "float32"))  # type: ignore[arg-type]


def refused(config: dict[str, Any], weights: dict[str, np.ndarray] | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(config, llama_weights(config) if weights is None else weights)
    return caught.value.message


class TestTensors:
    @pytest.mark.parametrize("name", sorted(llama_weights(UNTIED)))
    def test_each_is_needed(self, name: str) -> None:
        """NUM-07: nothing that is missing is replaced."""
        weights = llama_weights(UNTIED)
        del weights[name]
        assert name in refused(UNTIED, weights)

    @pytest.mark.parametrize("name", sorted(llama_weights(UNTIED)))
    def test_each_has_its_shape_checked(self, name: str) -> None:
        weights = llama_weights(UNTIED)
        weights[name] = np.concatenate([weights[name], weights[name]])
        message = refused(UNTIED, weights)
        assert name in message
        assert str(list(weights[name].shape)) in message

    @pytest.mark.parametrize(
        "name",
        [
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.self_attn.sinks",
            "model.layers.1.self_attn.q_proj.bias",
            "model.layers.3.mlp.up_proj.weight",
            "lm_head.bias",
            "nonsense",
        ],
    )
    def test_none_is_left_over(self, name: str) -> None:
        """NUM-07: what the architecture has no place for is refused by name."""
        assert name in refused(UNTIED, {**llama_weights(UNTIED), name: np.ones(16, np.float32)})

    def test_redundant_buffers_are_known(self) -> None:
        extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32) for i in range(3)}
        load(UNTIED, {**llama_weights(UNTIED), **extra})

    def test_an_untied_model_needs_its_head(self) -> None:
        assert "lm_head.weight" in refused(UNTIED, llama_weights(LLAMA))

    def test_a_tied_model_may_have_a_redundant_head(self) -> None:
        load(LLAMA, {**llama_weights(LLAMA), "lm_head.weight": llama_weights(LLAMA)["model.embed_tokens.weight"]})

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_head_that_differs_is_not_redundant(self, backend: str, tmp_path: Path) -> None:
        """A config that ties and a file that has another head: transformers believes the file."""
        path = make_llama(tmp_path)
        save_file(llama_weights(UNTIED), path / "model.safetensors", metadata={"format": "pt"})
        got = Model(open_checkpoint(str(path)), backend).logits(PROMPT, "prefill")
        assert difference(got, oracle(path, PROMPT)) < 1e-4
        tied = Model(MemoryCheckpoint(LLAMA), backend).logits(PROMPT, "prefill")
        assert difference(got, tied) > 0.01

    def test_a_misshapen_head_is_no_copy(self) -> None:
        assert "lm_head.weight" in refused(
            LLAMA, {**llama_weights(LLAMA), "lm_head.weight": np.ones((3, 64), np.float32)}
        )


class TestConfig:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"model_type": "mamba"}, "mamba"),
            ({"model_type": None}, "model_type"),
            ({"hidden_size": None}, "hidden_size"),
            ({"hidden_size": "64"}, "hidden_size"),
            ({"hidden_size": True}, "hidden_size"),
            ({"hidden_size": -64}, "hidden_size"),
            ({"hidden_size": 66}, "hidden_size"),
            ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
            ({"num_key_value_heads": 3}, "num_attention_heads"),
            ({"rms_norm_eps": 0}, "rms_norm_eps"),
            ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
            ({"hidden_act": "relu"}, "hidden_act"),
            ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
            ({"rope_theta": None, "rope_parameters": [1]}, "rope_parameters"),
            ({"rope_scaling": {"rope_type": "mrope"}}, "mrope"),
            ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ],
    )
    def test_what_is_not_supported_is_named(self, change: dict[str, Any], named: str) -> None:
        config = {k: v for k, v in {**LLAMA, **change}.items() if v is not None}
        assert named in refused(config, llama_weights(LLAMA))

    def test_an_unknown_family_is_told_which_are_known(self) -> None:
        assert "llama" in refused({**LLAMA, "model_type": "mamba"}, {})

    def test_the_length_is_limited_by_the_model(self) -> None:
        backend, checkpoint = get_backend("torch", "float32"), MemoryCheckpoint(LLAMA)
        assert load_model(checkpoint, backend).spec.max_model_len == 512
        assert load_model(checkpoint, backend, 100).spec.max_model_len == 100
        with pytest.raises(ConfigError, match=r"--max-model-len is 513, but this model has 512 positions"):
            load_model(checkpoint, backend, 513)
        long = MemoryCheckpoint({**LLAMA, "max_position_embeddings": 131072})
        assert load_model(long, backend).spec.max_model_len == 8192

    @pytest.mark.parametrize(
        ("config", "dtype"),
        [({"dtype": "bfloat16"}, "bfloat16"), ({"torch_dtype": "float16"}, "float16"), ({}, "float32")],
    )
    def test_dtype_of_a_checkpoint(self, config: dict[str, str], dtype: str) -> None:
        assert checkpoint_dtype(config) == dtype


def test_rope_theta_is_read_wherever_it_is(tmp_path: Path) -> None:
    """NUM-05: old key, new key and both give the same logits; another theta does not."""
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}
    forms: list[dict[str, Any]] = [
        {"rope_theta": 100000.0},
        {"rope_theta": None, **new},
        {"rope_theta": 100000.0, **new},
        {"rope_theta": 10000.0, **new},  # the new key wins
    ]
    checkpoints = [open_checkpoint(str(make_llama(tmp_path / str(i), **form))) for i, form in enumerate(forms)]
    logits = [Model(c, "torch").logits(PROMPT, "prefill") for c in checkpoints]
    assert [difference(found, logits[0]) for found in logits] == [0, 0, 0, 0]
    other = Model(open_checkpoint(str(make_llama(tmp_path / "other", rope_theta=10000.0))), "torch")
    assert difference(other.logits(PROMPT, "prefill"), logits[0]) > 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_progress_and_size(backend: str) -> None:
    told: list[tuple[int, int]] = []
    checkpoint = MemoryCheckpoint(LLAMA)
    model = load_model(checkpoint, get_backend(backend, "float32"), progress=lambda *p: told.append(p))  # type: ignore[arg-type]
    total = len(checkpoint.source.names())
    assert told[0] == (1, total)
    assert told[-1] == (total, total)
    assert told == sorted(told)
    weights = llama_weights(LLAMA)
    packed_head = weights["model.embed_tokens.weight"].size if backend == "torch" and packs(torch.float32) else 0
    assert model.weight_bytes == 4 * (sum(w.size for w in weights.values()) + packed_head)
