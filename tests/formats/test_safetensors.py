from __future__ import annotations

import contextlib
import json
import re
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize, pack
from mlxserve.formats.mlx_quantization import BITS, GROUP_SIZES
from mlxserve.formats.safetensors import INDEX, MAX_HEADER, SINGLE, SafetensorsSource
from mlxserve.formats.tensors import AffineTensor, DenseTensor

RNG = np.random.default_rng(0)
TENSORS = {
    "model.embed_tokens.weight": RNG.standard_normal((8, 64)).astype(np.float32),
    "model.layers.0.self_attn.q_proj.weight": RNG.standard_normal((64, 64)).astype(np.float16),
    "model.norm.weight": np.ones(64, np.float32),
}


def write_shards(directory: Path, parts: dict[str, dict[str, np.ndarray]], index: dict[str, str] | None = None) -> None:
    for name, tensors in parts.items():
        save_file(tensors, directory / name)
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors} if index is None else index
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def halves() -> dict[str, dict[str, np.ndarray]]:
    names = sorted(TENSORS)
    return {
        "model-00001-of-00002.safetensors": {name: TENSORS[name] for name in names[:1]},
        "model-00002-of-00002.safetensors": {name: TENSORS[name] for name in names[1:]},
    }


def assert_reads(source: SafetensorsSource, tensors: dict[str, np.ndarray]) -> None:
    assert set(source.names()) == set(tensors)
    for name, values in tensors.items():
        tensor = source.read(name)
        assert tensor.shape == source.shape(name) == values.shape
        np.testing.assert_array_equal(dequantize(tensor), values.astype(np.float32))


def test_one_file(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / SINGLE)
    source = SafetensorsSource(tmp_path, {})
    assert_reads(source, TENSORS)
    assert source.quantization == "none"
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing"):
        source.read("lm_head.weight")


def test_one_file_of_another_name(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "weights.safetensors")
    assert_reads(SafetensorsSource(tmp_path, {}), TENSORS)


def test_bfloat16_bits_are_kept_wherever_they_lie(tmp_path: Path) -> None:
    """Also at an odd offset, where numpy would make an unaligned view."""
    bits = np.arange(64, dtype=np.uint16)
    info = {
        "pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "BF16", "shape": [2, 32], "data_offsets": [1, 129]},
    }
    head = json.dumps(info).encode()
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", len(head)) + head + b"\0" + bits.tobytes())
    tensor = SafetensorsSource(tmp_path, {}).read("w")
    assert isinstance(tensor, DenseTensor)
    assert (tensor.dtype, tensor.shape, tensor.data.flags.aligned) == ("bfloat16", (2, 32), True)
    np.testing.assert_array_equal(tensor.data.reshape(-1), bits)


def test_a_type_that_is_not_supported_is_named(tmp_path: Path) -> None:
    save_file({"a": np.zeros(4, np.int64)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match="'a' has the type I64; supported are F32, F16, BF16"):
        SafetensorsSource(tmp_path, {}).read("a")


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, halves())
    save_file({"x": np.ones(1, np.float32)}, tmp_path / "consolidated.safetensors")  # no shard: not accounted for
    assert_reads(SafetensorsSource(tmp_path, {}), TENSORS)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """LOAD-01."""
    write_shards(tmp_path, halves())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing: model-00002-of-00002\.safetensors"):
        SafetensorsSource(tmp_path, {})


def test_a_shard_that_the_index_does_not_list_is_named(tmp_path: Path) -> None:
    """LOAD-01."""
    write_shards(tmp_path, halves())
    save_file({"x": np.ones(1, np.float32)}, tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"does not list files that are there: model-00003-of-00003"):
        SafetensorsSource(tmp_path, {})


def test_an_index_and_a_shard_that_disagree_name_the_tensor(tmp_path: Path) -> None:
    """LOAD-01."""
    parts = halves()
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    write_shards(tmp_path, parts, places | {"model.layers.1.x": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.x' in model-00001-of-00002\.safetensors, which"):
        SafetensorsSource(tmp_path, {})
    write_shards(tmp_path, parts, {name: place for name, place in places.items() if name != "model.norm.weight"})
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight', which .* does not list"):
        SafetensorsSource(tmp_path, {})


@pytest.mark.parametrize("place", ["../outside.safetensors", "/etc/passwd", "sub/a.safetensors", "weights.bin", ""])
def test_an_index_cannot_point_elsewhere(place: str, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(CheckpointError, match="not a safetensors file of this directory"):
        SafetensorsSource(tmp_path, {})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "\udcff", "[" * 100_000]
)
def test_a_corrupt_index_is_named(text: str, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / INDEX).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        SafetensorsSource(tmp_path, {})


def test_several_files_without_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path, halves())
    (tmp_path / INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"2 safetensors files, but no model\.safetensors\.index\.json"):
        SafetensorsSource(tmp_path, {})


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "model.ckpt", "w.pkl"])
def test_pickle_weights_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """SEC-09."""
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(CheckpointError, match=f"pickle .{name}."):
        SafetensorsSource(tmp_path, {})


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no weights"):
        SafetensorsSource(tmp_path, {})


def damaged(data: bytes) -> dict[str, bytes]:
    length = int.from_bytes(data[:8], "little")
    return {
        "1 kB short": data[:-1024],
        "half": data[: len(data) // 2],
        "4 bytes": data[:4],
        "empty": b"",
        "zero header": bytes(8) + data[8:],
        "header of 2**60": struct.pack("<Q", 2**60) + data[8:],
        "header of 2**63": struct.pack("<Q", 2**63) + data[8:],
        "header up to the end": struct.pack("<Q", len(data) - 8) + data[8:],
        "not JSON": data[:8] + bytes(length) + data[8 + length :],
        "too long": data + bytes(8),
        "a GGUF": b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64),
        "deep": struct.pack("<Q", 100_000) + b'{"a":' * 20_000,
    }


@pytest.mark.parametrize("damage", damaged(bytes(8)))
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    """LOAD-02."""
    save_file(TENSORS, tmp_path / SINGLE)
    (tmp_path / SINGLE).write_bytes(damaged((tmp_path / SINGLE).read_bytes())[damage])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        SafetensorsSource(tmp_path, {})


def test_a_huge_header_costs_nothing(tmp_path: Path) -> None:
    """LOAD-02."""
    with (tmp_path / SINGLE).open("wb") as file:
        file.write(struct.pack("<Q", 2**39))
        file.truncate(2**40)
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=f"may have {MAX_HEADER}"):
        SafetensorsSource(tmp_path, {})
    assert time.perf_counter() - start < 2


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 12_000)),
)
def test_damage_is_a_checkpoint_error_or_harmless(
    tmp_path: Path, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    save_file(TENSORS, tmp_path / SINGLE)
    data = bytearray((tmp_path / SINGLE).read_bytes())
    for position, replacement in edits:
        data[position : position + len(replacement)] = replacement
    (tmp_path / SINGLE).write_bytes(data[:cut])
    with contextlib.suppress(CheckpointError):
        source = SafetensorsSource(tmp_path, {})
        for name in source.names():
            source.read(name)


def test_a_name_twice_in_the_header(tmp_path: Path) -> None:
    """JSON allows it, and the last one counts: what is validated has to be what is read."""
    one = '"w":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}'
    two = '"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    for first, second in ((one, two), (two, one)):
        head = f"{{{first},{second}}}".encode()
        (tmp_path / SINGLE).write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
        with contextlib.suppress(CheckpointError):
            assert SafetensorsSource(tmp_path, {}).read("w").shape == (1,)


@pytest.mark.parametrize(
    ("prefix", "head_name"),
    [
        ("language_model.model.", "language_model.lm_head.weight"),
        ("language_model.", "language_model.lm_head.weight"),
        ("model.language_model.model.", "model.language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
    ],
)
def test_multimodal_prefixes_come_off_once(prefix: str, head_name: str, tmp_path: Path) -> None:
    """LOAD-05: all layouts in use; the other parts of such a checkpoint are no part of the text model."""
    head = np.ones((8, 64), np.float32)
    stored = {prefix + name.removeprefix("model."): values for name, values in TENSORS.items()} | {head_name: head}
    stored["vision_tower.blocks.0.weight"] = stored["model.visual.x"] = np.ones(1, np.float32)
    save_file(stored, tmp_path / SINGLE)
    assert_reads(SafetensorsSource(tmp_path, {}), TENSORS | {"lm_head.weight": head})


def test_a_name_with_and_without_prefix_is_refused(tmp_path: Path) -> None:
    """LOAD-05."""
    save_file(TENSORS | {"language_model.model.norm.weight": np.ones(64, np.float32)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=r"both stand for 'model\.norm\.weight'"):
        SafetensorsSource(tmp_path, {})


@pytest.mark.parametrize("name", ["language_model.lm_head.weight", "model.language_model.layers.9.mlp.up_proj.weight"])
def test_a_stray_tensor_with_a_prefix_is_refused(name: str, tmp_path: Path) -> None:
    """LOAD-05: a head would be taken for the model's own, and silently change every answer."""
    save_file(TENSORS | {name: np.ones((8, 64), np.float32)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=f"'{re.escape(name)}' is named as a multimodal model's text part, but"):
        SafetensorsSource(tmp_path, {})


def quantised(bits: int, group: int, name: str = "model.layers.0.mlp.up_proj") -> dict[str, np.ndarray]:
    values = RNG.integers(0, 2**bits, (4, 256), dtype=np.uint8)
    scales = RNG.standard_normal((2, 4, 256 // group)).astype(np.float16)
    return {f"{name}.weight": pack(values, bits), f"{name}.scales": scales[0], f"{name}.biases": scales[1]}


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize("bits", BITS)
def test_affine_quantisation_of_mlx(bits: int, group: int, tmp_path: Path) -> None:
    stored = quantised(bits, group)
    save_file(stored | {"model.norm.weight": np.ones(64, np.float32)}, tmp_path / SINGLE)
    source = SafetensorsSource(tmp_path, {"quantization": {"group_size": group, "bits": bits}})
    name = "model.layers.0.mlp.up_proj.weight"
    assert set(source.names()) == {name, "model.norm.weight"}
    assert source.shape(name) == (4, 256)
    assert source.quantization == f"int{bits}"
    tensor = source.read(name)
    assert isinstance(tensor, AffineTensor)
    assert (tensor.bits, tensor.group_size, tensor.shape) == (bits, group, (4, 256))
    np.testing.assert_array_equal(tensor.packed, stored[name])
    assert isinstance(source.read("model.norm.weight"), DenseTensor)


def test_overrides_of_single_layers(tmp_path: Path) -> None:
    """Keys of the config may carry the prefix that the tensors carry."""
    one, two = (f"language_model.model.layers.0.mlp.{part}_proj" for part in ("up", "down"))
    save_file(quantised(4, 64, one) | quantised(8, 32, two), tmp_path / SINGLE)
    section = {"group_size": 64, "bits": 4, two: {"group_size": 32, "bits": 8}, "model.embed_tokens": False}
    source = SafetensorsSource(tmp_path, {"quantization": section})
    first, second = (source.read(f"model.layers.0.mlp.{part}_proj.weight") for part in ("up", "down"))
    assert isinstance(first, AffineTensor)
    assert isinstance(second, AffineTensor)
    assert (first.bits, first.group_size, second.bits, second.group_size) == (4, 64, 8, 32)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "config.json does not say how"),
        ({"bits": 4, "group_size": 32}, "is not 4-bit affine in groups of 32"),
        ({"bits": 8, "group_size": 64}, "is not 8-bit affine in groups of 64"),
        ({"bits": 7, "group_size": 64}, "7 bits in groups of 64 is not supported"),
        ({"bits": 4, "group_size": 16}, "4 bits in groups of 16 is not supported"),
        ({"bits": "4", "group_size": 64}, "is not supported"),
        ({"bits": 4, "group_size": 64, "mode": "mxfp4"}, "mode 'mxfp4' is not supported"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "quantised by 'gptq' are not supported"),
        ({"bits": 4, "group_size": 64, "model.layers.0.mlp.up_proj": False}, "does not say how"),
        ("int4", "not an object"),
    ],
)
def test_a_quantisation_that_does_not_fit_is_named(section: Any, message: str, tmp_path: Path) -> None:
    save_file(quantised(4, 64), tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsSource(tmp_path, {"quantization": section})


@pytest.mark.parametrize("missing", ["weight", "biases"])
def test_a_part_of_a_quantised_tensor_is_missing(missing: str, tmp_path: Path) -> None:
    stored = {name: values for name, values in quantised(4, 64).items() if not name.endswith(missing)}
    save_file(stored, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=r"mlp\.up_proj\.weight"):
        SafetensorsSource(tmp_path, {"quantization": {"bits": 4, "group_size": 64}})


def test_packed_integers_without_scales_are_named(tmp_path: Path) -> None:
    stored = {name: values for name, values in quantised(4, 64).items() if name.endswith(".weight")}
    save_file(stored, tmp_path / SINGLE)
    source = SafetensorsSource(tmp_path, {"quantization": {"bits": 4, "group_size": 64}})
    with pytest.raises(CheckpointError, match=r"up_proj\.weight' has the type U32"):
        source.read("model.layers.0.mlp.up_proj.weight")


def test_a_scalar_and_an_empty_tensor(tmp_path: Path) -> None:
    tensors = {"scalar": np.array(2, np.float32), "empty": np.zeros((0, 4), np.float32)}
    save_file(tensors, tmp_path / SINGLE)
    assert_reads(SafetensorsSource(tmp_path, {}), tensors)
