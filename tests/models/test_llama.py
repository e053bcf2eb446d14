"""Tiny llamas against transformers, on both backends, however their tokens are cut into steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxserve.backends.batch import AttentionPlan, HostBatch
from mlxserve.engine.interfaces import ForwardBatch
from mlxserve.formats.checkpoint import open_checkpoint
from tests.models.harness import BACKENDS, MODES, Logits, Model, difference, oracle
from tests.tiny import LLAMA, MemoryCheckpoint, llama_weights, make_llama

TOLERANCE = 1e-4
PROMPTS = [np.random.default_rng(s).integers(0, 288, n).tolist() for s, n in enumerate((1, 5, 13, 33, 2))]

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "explicit_head_dim": {"head_dim": 32},
    "one_head_each": {"num_key_value_heads": 4},
    "multi_query": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "rope_parameters": {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Logits]]:
    path = make_llama(tmp_path_factory.mktemp(request.param), **VARIANTS[request.param])
    return path, oracle(path, PROMPTS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_equal_transformers(variant: tuple[Path, list[Logits]], backend: str) -> None:
    """NUM-01: a sequence's logits do not depend on its company, its chunks or its padding."""
    path, want = variant
    model = Model(open_checkpoint(str(path)), backend)
    for mode in MODES:
        assert difference(model.logits(PROMPTS, mode), want) < TOLERANCE, mode


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_block_size_does_not_matter(tmp_path: Path, backend: str, block_size: int) -> None:
    path = make_llama(tmp_path)
    model = Model(open_checkpoint(str(path)), backend, block_size=block_size)
    assert difference(model.logits(PROMPTS, "mixed"), oracle(path, PROMPTS)) < TOLERANCE


class OffByOne(HostBatch):
    """Masks moved by one key."""

    def attention_plan(self, window: int | None) -> AttentionPlan:
        plan = super().attention_plan(window)
        decode = plan.decode and replace(plan.decode, mask=np.roll(plan.decode.mask, 1, -1) | _first(plan.decode.mask))
        prefills = [replace(p, mask=np.roll(p.mask, -1, -1) | _first(p.mask)) for p in plan.prefills]
        return AttentionPlan(decode, tuple(prefills))


def _first(mask: np.ndarray) -> np.ndarray:
    """Keeps the first key, so that no query is left without one."""
    return np.broadcast_to(np.arange(mask.shape[-1]) == 0, mask.shape)


class OffByOneModel(Model):
    def host(self, batch: ForwardBatch) -> HostBatch:
        host = super().host(batch)
        return OffByOne(**{name: getattr(host, name) for name in HostBatch.__slots__})


@pytest.mark.parametrize("backend", BACKENDS)
class TestChecksCanFail:
    """Negative controls: each breaks one thing, and the comparison with the intact model must show it."""

    def want(self, backend: str) -> list[Logits]:
        return Model(MemoryCheckpoint(LLAMA), backend).logits(PROMPTS, "prefill")

    def test_rope_base_doubled(self, backend: str) -> None:
        broken = Model(MemoryCheckpoint({**LLAMA, "rope_theta": 20000.0}), backend)
        assert difference(broken.logits(PROMPTS, "prefill"), self.want(backend)) > 100 * TOLERANCE

    @pytest.mark.parametrize("name", ["model.norm", "model.layers.1.input_layernorm"])
    def test_norm_dropped(self, backend: str, name: str) -> None:
        weights = llama_weights(LLAMA)
        weights[f"{name}.weight"] = np.ones_like(weights[f"{name}.weight"])
        broken = Model(MemoryCheckpoint(LLAMA, weights), backend)
        assert difference(broken.logits(PROMPTS, "prefill"), self.want(backend)) > 100 * TOLERANCE

    @pytest.mark.parametrize("mode", MODES)
    def test_mask_off_by_one(self, backend: str, mode: str) -> None:
        broken = OffByOneModel(MemoryCheckpoint(LLAMA), backend)
        assert difference(broken.logits(PROMPTS, mode), self.want(backend)) > 100 * TOLERANCE
