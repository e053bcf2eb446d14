from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.checkpoint import Checkpoint, open_checkpoint
from mlxserve.formats.quantize import QuantizedSource, quantized, requantised
from mlxserve.formats.tensors import AffineTensor, DenseTensor
from tests.formats.gguf_files import Kind, write_llama
from tests.formats.test_affine_search import plain
from tests.tiny import make_llama

LAYER = "model.layers.1"
LINEAR = [f"self_attn.{n}_proj" for n in "qko"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]


@pytest.fixture
def dense(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(str(make_llama(tmp_path / "llama", attention_bias=True, tie_word_embeddings=False)))


@pytest.mark.parametrize("bits", [4, 8])
def test_which_tensors_and_how(bits: int, dense: Checkpoint) -> None:
    source = quantized(dense, bits, 32).source
    assert source.quantization == f"int{bits}"
    assert set(source.names()) == set(dense.source.names())
    widths = {f"{LAYER}.{name}.weight": bits for name in LINEAR}
    widths |= dict.fromkeys((f"{LAYER}.self_attn.v_proj.weight", "model.embed_tokens.weight", "lm_head.weight"), 8)
    for name, expected in widths.items():
        tensor = source.read(name)
        assert isinstance(tensor, AffineTensor)
        assert (tensor.bits, tensor.group_size, tensor.scales.dtype) == (expected, 32, "float16")
        true = dequantize(dense.source.read(name))
        assert np.abs(dequantize(tensor) - true).max() < np.ptp(true) / 2**expected
    for name in ("model.norm.weight", f"{LAYER}.input_layernorm.weight", f"{LAYER}.self_attn.q_proj.bias"):
        assert isinstance(source.read(name), DenseTensor)


def test_the_outline_is_that_of_the_tensor(dense: Checkpoint) -> None:
    source = quantized(dense, 4, 32).source
    for name in source.names():
        outline, tensor = source.outline(name), source.read(name)
        assert outline.shape == tensor.shape == source.shape(name)
        assert type(outline) is type(tensor)
        if isinstance(tensor, AffineTensor):
            assert isinstance(outline, AffineTensor)
            assert (outline.bits, outline.packed.nbytes) == (tensor.bits, tensor.packed.nbytes)
            assert outline.scales.dtype == tensor.scales.dtype


def test_a_q4_1_file_in_groups_of_32_is_exact(tmp_path: Path) -> None:
    """What is quantised as tightly already is passed on bit for bit."""
    checkpoint = open_checkpoint(str(write_llama(tmp_path / "m.gguf", Kind.Q4_1).path))
    source = quantized(checkpoint, 4, 32).source
    for name in source.names():
        np.testing.assert_array_equal(dequantize(source.read(name)), dequantize(checkpoint.source.read(name)))


def test_fewer_bits_are_quantised_again_and_more_are_not(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_llama(tmp_path / "m.gguf", Kind.Q8_0).path))
    name = f"{LAYER}.mlp.gate_proj.weight"
    four, eight = (quantized(checkpoint, bits, 32).source.read(name) for bits in (4, 8))
    assert isinstance(four, AffineTensor)
    assert isinstance(eight, AffineTensor)
    assert (four.bits, eight.bits) == (4, 8)
    np.testing.assert_array_equal(dequantize(eight), dequantize(checkpoint.source.read(name)))


def test_quantising_once_more_is_said(tmp_path: Path, dense: Checkpoint) -> None:
    checkpoint = open_checkpoint(str(write_llama(tmp_path / "m.gguf", Kind.Q8_0).path))
    said = "the weights are q8_0 already: quantised again as int4 they lose accuracy"
    assert requantised(quantized(checkpoint, 4, 32)) == said
    assert requantised(quantized(checkpoint, 8, 32)) is None, "passed on as it is"
    assert requantised(checkpoint) is None
    assert requantised(quantized(dense, 4, 32)) is None, "it was not quantised before"


def test_bfloat16_weights_get_bfloat16_scales(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    path = make_llama(tmp_path / "llama")
    arrays = load_file(path / "model.safetensors")
    save_torch({k: torch.from_numpy(v).bfloat16() for k, v in arrays.items()}, path / "model.safetensors")
    tensor = quantized(open_checkpoint(str(path)), 4, 32).source.read(f"{LAYER}.mlp.up_proj.weight")
    assert isinstance(tensor, AffineTensor)
    assert tensor.scales.dtype == "bfloat16"


def test_routers_stay_and_experts_do_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layer = "model.layers.0.mlp"
    shapes = {
        f"{layer}.gate.weight": (4, 64),
        f"{layer}.experts.0.up_proj.weight": (8, 64),
        f"{layer}.switch_mlp.up_proj.weight": (4, 8, 64),
        "model.layers.0.conv.weight": (8, 1, 64),
    }
    path = make_llama(tmp_path / "llama")
    save_file({n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}, path / "model.safetensors")
    source = quantized(open_checkpoint(str(path)), 4, 32).source
    kinds = [isinstance(source.read(name), AffineTensor) for name in shapes]
    assert kinds == [False, True, True, False]


def test_inputs_that_are_larger_count_more(dense: Checkpoint) -> None:
    """o_proj's inputs are as large as v_proj's rows, one of these for two query heads; down_proj's as the product."""
    source = quantized(dense, 4, 32).source
    assert isinstance(source, QuantizedSource)

    def rows(name: str) -> np.ndarray:
        return (dequantize(dense.source.read(f"{LAYER}.{name}.weight")) ** 2).sum(axis=1)

    v = rows("self_attn.v_proj")
    expected = np.concatenate([v[:16], v[:16], v[16:], v[16:]])  # heads of 16: two share a key-value head
    found = source._importance(f"{LAYER}.self_attn.o_proj.weight")
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-5)
    product = rows("mlp.gate_proj") * rows("mlp.up_proj")
    found = source._importance(f"{LAYER}.mlp.down_proj.weight")
    np.testing.assert_allclose(found, np.maximum(product / product.mean(), 1e-3), rtol=1e-5)
    assert source._importance(f"{LAYER}.self_attn.q_proj.weight") is None


def test_a_group_size_that_does_not_divide_is_named(dense: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"group size is 128, but must divide the 64 columns of 'lm_head"):
        quantized(dense, 4, 128)


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    path = make_llama(tmp_path / "llama")
    arrays = load_file(path / "model.safetensors")
    arrays[f"{LAYER}.mlp.up_proj.weight"][3, 5] = np.nan
    save_file(arrays, path / "model.safetensors")
    source = quantized(open_checkpoint(str(path)), 4, 32).source
    with pytest.raises(CheckpointError, match=rf"'{LAYER}\.mlp\.up_proj\.weight' has values that are not finite"):
        source.read(f"{LAYER}.mlp.up_proj.weight")


def test_the_embedded_model() -> None:
    """bench/quantization.py measures what this is worth: 0.83 of the top-5 instead of 0.74 for the plain grid."""
    checkpoint = open_checkpoint("smollm2-135m")
    source = quantized(checkpoint, 4, 64).source
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.29.mlp.gate_proj.weight"):
        true = dequantize(checkpoint.source.read(name))
        found = float(((dequantize(source.read(name)) - true) ** 2).sum())
        assert found < 0.85 * float(((plain(true, 4, 64) - true) ** 2).sum())
    exact = quantized(checkpoint, 4, 32).source
    for name in ("model.embed_tokens.weight", "model.layers.7.mlp.down_proj.weight"):
        np.testing.assert_array_equal(dequantize(exact.read(name)), dequantize(checkpoint.source.read(name)))


def test_the_checkpoint_is_otherwise_the_same(dense: Checkpoint) -> None:
    assert dataclasses.replace(quantized(dense, 4, 32), source=dense.source) == dense
