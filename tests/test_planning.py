"""Plans against loads: what is weighed without reading is what loading counts, and errors are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxserve.backends import get_backend
from mlxserve.backends.base import Backend
from mlxserve.config import EngineConfig
from mlxserve.errors import CheckpointError, ConfigError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.tensors import AffineTensor, DenseTensor
from mlxserve.loader import load_model
from mlxserve.planning import GIB, Fit, MetalForm, fit, footprint, gpu_memory, metal_footprint, weigh
from mlxserve.runner import pool_blocks
from tests.tiny import make_llama

ENGINE = EngineConfig(max_num_seqs=4)


def backend(name: str) -> Backend[Any, Any]:
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[name])
    return get_backend(name, "float32")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["torch", "mlx"])
@pytest.mark.parametrize("tied", [True, False])
def test_weighing_counts_what_loading_counts(tmp_path: Path, name: str, tied: bool) -> None:
    checkpoint = open_checkpoint(str(make_llama(tmp_path, tie_word_embeddings=tied)))
    device = backend(name)
    assert footprint(checkpoint, device, ENGINE).weights.total == load_model(checkpoint, device).weight_bytes


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_the_embedded_model_is_weighed_right(name: str) -> None:
    checkpoint = open_checkpoint("smollm2-135m")
    device = backend(name)
    plan = footprint(checkpoint, device, ENGINE)
    assert plan.weights.total == load_model(checkpoint, device).weight_bytes
    assert plan.weights.parameters == 134_515_008


@pytest.mark.parametrize("model", ["smollm2-135m", "tiny"])
def test_an_outline_has_the_form_of_the_tensor(tmp_path: Path, model: str) -> None:
    source = open_checkpoint(model if model != "tiny" else str(make_llama(tmp_path))).source
    for name in source.names():
        outline, tensor = source.outline(name), source.read(name)
        assert type(outline) is type(tensor)
        assert outline.shape == tensor.shape
        if isinstance(tensor, AffineTensor):
            assert isinstance(outline, AffineTensor)
            assert (outline.bits, outline.group_size) == (tensor.bits, tensor.group_size)
            assert (outline.packed.shape, outline.packed.dtype) == (tensor.packed.shape, tensor.packed.dtype)
            assert (outline.scales.shape, outline.scales.dtype) == (tensor.scales.shape, tensor.scales.dtype)
        else:
            assert isinstance(outline, DenseTensor)
            assert (outline.dtype, outline.data.dtype) == (tensor.dtype, tensor.data.dtype)
            assert outline.data.strides == (0,) * len(outline.shape), "it takes no memory"


def test_a_checkpoint_that_cannot_be_loaded_cannot_be_planned(tmp_path: Path) -> None:
    make_llama(tmp_path, num_hidden_layers=2)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.2"):
        metal_footprint(open_checkpoint(str(tmp_path)), ENGINE)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    with pytest.raises(CheckpointError, match="abacus"):
        metal_footprint(open_checkpoint(str(tmp_path)), ENGINE)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="--max-model-len is 9999"):
        metal_footprint(open_checkpoint(str(tmp_path)), EngineConfig(max_model_len=9999))


def test_metal_keeps_weights_as_mlx_does() -> None:
    mx = pytest.importorskip("mlx.core")
    from mlxserve.backends.mlx.ops import MlxOps

    source = open_checkpoint("smollm2-135m").source
    for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        tensor = source.read(name)
        assert MetalForm("float16").weight_bytes(tensor) == MlxOps(mx.float16).weight_bytes(tensor)


class OnlyShapes:
    """A mixture of experts whose tensors are named and shaped, and nothing else."""

    quantization = "none"

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def outline(self, name: str) -> DenseTensor:
        return DenseTensor(np.broadcast_to(np.float16(0), self._shapes[name]), "float16")

    def read(self, name: str) -> DenseTensor:
        raise AssertionError("a plan reads nothing")


def test_a_token_reads_only_its_experts_and_one_row_of_an_untied_embedding() -> None:
    from mlxserve.models.families import model_spec

    config = {
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 1e4,
    }
    layer = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (100, 64),
        "lm_head.weight": (100, 64),
        "model.norm.weight": (64,),
        f"{layer}self_attn.q_proj.weight": (64, 64),
        f"{layer}self_attn.k_proj.weight": (32, 64),
        f"{layer}self_attn.v_proj.weight": (32, 64),
        f"{layer}self_attn.o_proj.weight": (64, 64),
        f"{layer}input_layernorm.weight": (64,),
        f"{layer}post_attention_layernorm.weight": (64,),
        f"{layer}block_sparse_moe.gate.weight": (8, 64),
    }
    for expert in range(8):
        for part, shape in {"w1": (96, 64), "w2": (64, 96), "w3": (96, 64)}.items():
            shapes[f"{layer}block_sparse_moe.experts.{expert}.{part}.weight"] = shape
    weights = weigh(OnlyShapes(shapes), model_spec(config), MetalForm("float16"))
    parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    expert_bytes = 2 * 3 * 96 * 64
    assert weights.parameters == parameters
    assert weights.total == 2 * parameters
    assert weights.per_token == weights.total - 2 * 100 * 64 - 6 * expert_bytes


@pytest.mark.parametrize("memory", [GIB * 5 // 4, 2 * GIB, 8 * GIB])
def test_the_pool_is_sized_as_the_runner_does(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    device = backend("torch")
    plan = footprint(open_checkpoint("smollm2-135m"), device, ENGINE)
    left = memory - plan.runtime_bytes - plan.weights.total
    monkeypatch.setattr(device, "free_memory", lambda: left)
    assert fit(plan, memory, ENGINE).blocks == pool_blocks(plan.spec, device, ENGINE)


def test_what_does_not_fit_is_said() -> None:
    plan = metal_footprint(open_checkpoint("smollm2-135m"), ENGINE)
    assert fit(plan, 300 * 2**20, ENGINE) == Fit(0, 0, plan.fixed_bytes(), 0)
    assert fit(plan, GIB, EngineConfig(kv_blocks=10_000)).blocks == 0
    assert fit(plan, GIB, EngineConfig(kv_blocks=100)).blocks == 100


def test_the_bandwidth_limit_falls_with_the_context() -> None:
    plan = metal_footprint(open_checkpoint("smollm2-135m"), ENGINE)
    assert plan.tokens_per_second(plan.weights.per_token, 0) == 1.0
    longer = plan.weights.per_token / plan.kv_token_bytes
    assert plan.tokens_per_second(plan.weights.per_token, round(longer)) == pytest.approx(0.5, rel=1e-3)


def test_gpu_memory_of_common_macs() -> None:
    sizes = [round(gpu_memory(size) / GIB, 1) for size in (8, 16, 24, 36, 64, 128)]
    assert sizes == [5.3, 10.7, 16.0, 27.0, 48.0, 96.0]
