"""Every kind of RoPE against transformers' frequencies, and its choices that depend on the served length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlxserve.errors import CheckpointError
from mlxserve.models.config import Config
from mlxserve.models.rope import context_length, make_rope

LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LONG = {"short_factor": [1 + i / 40 for i in range(32)], "long_factor": [2 + i / 4 for i in range(32)]}

KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn_betas": {"rope_type": "yarn", **YARN, "beta_fast": 24, "beta_slow": 2, "truncate": False},
    "yarn_attention_factor": {"rope_type": "yarn", **YARN, "attention_factor": 0.8},
    "yarn_mscale": {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "longrope_short": {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 2048},
    "longrope_long": {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 512},
    "longrope_factors": {
        "rope_type": "longrope",
        **LONG,
        "original_max_position_embeddings": 512,
        "factor": 6.0,
        "attention_factor": 1.19,
    },
}
BASE = {"max_position_embeddings": 2048, "head_dim": 64, "hidden_size": 256, "num_attention_heads": 4}


def transformers_rope(parameters: dict[str, Any], seq_len: int) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**BASE, rope_parameters=dict(parameters))
    if parameters["rope_type"] == "default":
        frequencies, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=seq_len)
    return frequencies.numpy(), factor


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_frequencies_equal_transformers(kind: str, theta: float) -> None:
    """NUM-03: llama3 with the case's numbers among them."""
    parameters = {**KINDS[kind], "rope_theta": theta}
    want, factor = transformers_rope(parameters, seq_len=1024)
    rope = make_rope(Config({**BASE, "rope_parameters": parameters}), 64, 1024)
    np.testing.assert_allclose(rope.inv_freq, want, rtol=1e-6)
    assert rope.factor == pytest.approx(factor)


@pytest.mark.parametrize("kind", KINDS)
def test_old_keys_mean_the_same(kind: str) -> None:
    """NUM-03: ``rope_scaling`` with "type" or "rope_type", theta beside it."""
    new = make_rope(Config({**BASE, "rope_parameters": {**KINDS[kind], "rope_theta": 5e5}}), 64, 1024)
    old = {k: v for k, v in KINDS[kind].items() if k != "rope_type"}
    for key in ("type", "rope_type"):
        scaling = {**old, key: KINDS[kind]["rope_type"]}
        assert make_rope(Config({**BASE, "rope_theta": 5e5, "rope_scaling": scaling}), 64, 1024) == new


def test_scaling_is_not_ignored() -> None:
    """The check above can fail: every kind differs from the plain frequencies."""
    plain = make_rope(Config(BASE), 64, 4096)
    for kind in set(KINDS) - {"default"}:
        assert make_rope(Config({**BASE, "rope_parameters": KINDS[kind]}), 64, 4096) != plain, kind


def test_the_served_length_decides() -> None:
    dynamic = Config({**BASE, "rope_parameters": KINDS["dynamic"]})
    assert make_rope(dynamic, 64, 100) == make_rope(dynamic, 64, 2048)
    want, _ = transformers_rope({**KINDS["dynamic"], "rope_theta": 10000.0}, seq_len=6000)
    np.testing.assert_allclose(make_rope(dynamic, 64, 6000).inv_freq, want, rtol=1e-6)
    longrope = Config({**BASE, "rope_parameters": KINDS["longrope_long"]})
    assert make_rope(longrope, 64, 512).inv_freq != make_rope(longrope, 64, 513).inv_freq


def test_phi3_keeps_the_original_length_outside() -> None:
    """The stretch of Phi-3's longrope is the ratio of the config's two lengths."""
    outside = {**BASE, "original_max_position_embeddings": 512, "rope_scaling": {"type": "su", **LONG}}
    inside = {**BASE, "rope_parameters": KINDS["longrope_long"]}
    assert make_rope(Config(outside), 64, 1024) == make_rope(Config(inside), 64, 1024)


def test_partial_rotation() -> None:
    config = Config({**BASE, "partial_rotary_factor": 0.25})
    rope = make_rope(config, 64, 100, partial=True)
    assert rope.dims == 16
    inside = Config({**BASE, "rope_parameters": {"partial_rotary_factor": 0.25}})
    assert rope == make_rope(inside, 64, 100, partial=True)
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor is 0\.25, but this family rotates all"):
        make_rope(config, 64, 100)


@pytest.mark.parametrize(
    ("kind", "length"), [("default", 2048), ("linear", 2048), ("dynamic", 8192), ("llama3", 2048), ("yarn", 2048)]
)
def test_context_length(kind: str, length: int) -> None:
    assert context_length(Config({**BASE, "rope_parameters": KINDS[kind]})) == length


def test_yarn_stretches_what_the_config_counts_unstretched() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert context_length(Config({**BASE, "rope_scaling": yarn})) == 8192


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"rope_type": "spiral"}, "spiral"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope_parameters.low_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "short_factor"),
        ({"rope_type": "linear", "factor": -1}, "rope_parameters.factor"),
        ({"rope_theta": "big"}, "rope_theta"),
    ],
)
def test_errors_name_the_key(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        make_rope(Config({**BASE, "rope_parameters": parameters}), 64, 1024)
