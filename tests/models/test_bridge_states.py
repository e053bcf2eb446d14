"""Architectures whose caches pages cannot hold: sequence by sequence, against mlx-lm's own generation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from safetensors.numpy import save_file

from mlxserve.backends.mlx.bridge_states import SequenceBridge
from mlxserve.cli.startup import startup_plan
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.llm import LLM, assemble
from mlxserve.types import SamplingParams
from tests.models.harness import MODES, Model, difference
from tests.tiny import MemoryCheckpoint, draw, make_tokenizer, write_json

VOCAB = 320
COMMON = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 128}
MAMBA = COMMON | {
    "model_type": "mamba",
    "intermediate_size": 64,
    "state_size": 8,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
}
MAMBA2 = COMMON | {
    "model_type": "mamba2",
    "num_heads": 4,
    "head_dim": 16,
    "intermediate_size": 64,
    "state_size": 32,
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
    "time_step_limit": [0.0, 1e9],
    "time_step_rank": 4,
}
FALCON_H1 = COMMON | {
    "model_type": "falcon_h1",
    "head_dim": 16,
    "intermediate_size": 64,
    "mamba_d_head": 16,
    "mamba_d_ssm": 64,
    "mamba_d_state": 32,
    "mamba_n_heads": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "lm_head_multiplier": 1.0,
}
LFM2 = COMMON | {
    "model_type": "lfm2",
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 32,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 64,
    "full_attn_idxs": [1],
}
CONFIGS = (MAMBA, MAMBA2, FALCON_H1, LFM2)
PROMPTS = [np.random.default_rng(i).integers(3, 200, n).tolist() for i, n in enumerate((5, 23, 37, 16))]


def build(config: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = draw({name: tuple(w.shape) for name, w in tree_flatten(model.parameters())})
    model.load_weights([(name, mx.array(w)) for name, w in weights.items()])
    return model, weights


def greedy(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    return tuple(int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count))


@pytest.fixture(params=CONFIGS, ids=lambda c: c["model_type"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def model(config: dict[str, Any], tmp_path: Path) -> Any:
    model, weights = build(config)
    make_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", config)
    save_file(weights, tmp_path / "model.safetensors")
    return model


def start(path: Path, **options: Any) -> LLM:
    return LLM(str(path), backend="mlx", **{"dtype": "float32", "max_num_seqs": 4, "block_size": 8, **options})


PARAMS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)


class TestGreedyEqualsMlxLm:
    def test_alone_then_together_in_chunks(self, model: Any, tmp_path: Path) -> None:
        want = [greedy(model, p, 20) for p in PROMPTS]
        assert len(set(want)) == len(PROMPTS), "the prompts do not matter: nothing would be shown"
        with start(tmp_path, prefill_chunk=7, max_num_batched_tokens=11) as llm:
            assert [llm.generate([p], PARAMS)[0].token_ids for p in PROMPTS] == want
            assert [c.token_ids for c in llm.generate(PROMPTS, PARAMS)] == want
            assert [c.token_ids for c in llm.generate(PROMPTS[::-1] * 2, PARAMS)] == want[::-1] * 2

    def test_preempted(self, model: Any, tmp_path: Path) -> None:
        want = [greedy(model, p, 20) for p in PROMPTS]
        with start(tmp_path, kv_blocks=12) as llm:
            assert [c.token_ids for c in llm.generate(PROMPTS, PARAMS)] == want
            assert llm.core.stats().preemptions_total

    def test_two_choices_of_one_prompt(self, model: Any, tmp_path: Path) -> None:
        want = greedy(model, PROMPTS[1], 20)
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, n=2)
        with start(tmp_path) as llm:
            assert [c.token_ids for c in llm.generate([PROMPTS[1]], params)] == [want, want]

    def test_after_one_that_was_aborted(self, model: Any, tmp_path: Path) -> None:
        with start(tmp_path) as llm:
            request = llm.submit(PROMPTS[1], PARAMS)
            for _ in range(4):
                llm.core.step()
            llm.core.abort(request)
            (done,) = llm.generate([PROMPTS[2]], PARAMS)
            assert done.token_ids == greedy(model, PROMPTS[2], 20)


def test_logits_in_every_way_of_cutting(config: dict[str, Any]) -> None:
    model, weights = build(config)
    ours = Model(MemoryCheckpoint(config, weights), "mlx")
    assert isinstance(ours.loaded.decoder, SequenceBridge)
    want = [np.array(model(mx.array([p]))[0]) for p in PROMPTS]
    for mode in MODES:
        assert difference(ours.logits(PROMPTS, mode), want) < 1e-4, mode


def test_a_lost_state_is_seen() -> None:
    """The control: the same comparison fails when each sequence's state is emptied once."""
    _, weights = build(MAMBA2)
    ours = Model(MemoryCheckpoint(MAMBA2, weights), "mlx")
    want = ours.logits(PROMPTS, "decode")
    decoder = ours.loaded.decoder
    assert isinstance(decoder, SequenceBridge)
    own = decoder._state

    def emptied(block: int, position: int) -> Any:
        state = own(block, position)
        if position == 3:
            state.caches = [type(c)(size=2) for c in state.caches]
        return state

    decoder._state = emptied  # type: ignore[method-assign]
    assert difference(ours.logits(PROMPTS, "decode"), want) > 1e-2


def test_states_do_not_pile_up(tmp_path: Path) -> None:
    _, weights = build(MAMBA)
    make_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", MAMBA)
    save_file(weights, tmp_path / "model.safetensors")
    with start(tmp_path) as llm:
        for _ in range(3):
            llm.generate(PROMPTS * 3, PARAMS)
        decoder = llm._runner._model.decoder
        assert isinstance(decoder, SequenceBridge)
        assert len(decoder._states) <= 2 * 4


def test_the_start_says_what_it_cannot_do(tmp_path: Path) -> None:
    _, weights = build(MAMBA)
    make_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", MAMBA)
    save_file(weights, tmp_path / "model.safetensors")
    parts = assemble(ModelConfig(model=str(tmp_path), backend="mlx"), EngineConfig(max_num_seqs=4))
    try:
        said = "\n".join(startup_plan(parts))
    finally:
        parts.core.close()
    assert "mlx-lm's model code, sequence by sequence" in said
    assert "no prefix cache" in said
    assert "temperature 1, where a request gives none" in said
    assert not parts.info.prefix_cache
