from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxserve.formats.affine import dequantize, pack
from mlxserve.formats.mlx_writer import write_tensors
from mlxserve.formats.safetensors import SafetensorsSource
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor

RNG = np.random.default_rng(0)


def affine() -> AffineTensor:
    q = RNG.integers(0, 16, (8, 64), dtype=np.uint8)
    scales = RNG.standard_normal((8, 2)).astype(np.float16)
    return AffineTensor(pack(q, 4), DenseTensor(scales, "float16"), DenseTensor(scales, "float16"), 4, 32)


TENSORS: dict[str, HostTensor] = {
    "lm_head.weight": affine(),
    "model.a.weight": DenseTensor(RNG.standard_normal(3).astype(np.float16), "float16"),
    "model.b.weight": DenseTensor(RNG.standard_normal((4, 5)).astype(np.float32), "float32"),
    "model.c.weight": DenseTensor(np.arange(7, dtype=np.uint16), "bfloat16"),
    "model.d.weight": DenseTensor(np.zeros((0, 4), np.float32), "float32"),
    "model.e.weight": DenseTensor(RNG.standard_normal((5, 4)).astype(np.float32).T, "float32"),
}
CONFIG = {"quantization": {"bits": 4, "group_size": 32}}


@pytest.mark.parametrize(("limit", "files"), [(2**20, 1), (400, 2), (1, 6)])
def test_what_is_written_is_read_back(limit: int, files: int, tmp_path: Path) -> None:
    write_tensors(tmp_path, TENSORS.items(), limit)
    assert len(list(tmp_path.glob("model*.safetensors"))) == files
    assert not list(tmp_path.glob("part-*"))
    source = SafetensorsSource(tmp_path, CONFIG)
    assert set(source.names()) == set(TENSORS)
    for name, tensor in TENSORS.items():
        found = source.read(name)
        assert type(found) is type(tensor)
        np.testing.assert_array_equal(dequantize(found), dequantize(tensor))


def test_mlx_reads_it(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    write_tensors(tmp_path, TENSORS.items())
    arrays = mx.load(str(tmp_path / "model.safetensors"))
    assert len(arrays) == len(TENSORS) + 2
    head = (arrays[f"lm_head.{part}"] for part in ("weight", "scales", "biases"))
    found = np.array(mx.dequantize(*head, group_size=32, bits=4))
    np.testing.assert_allclose(found, dequantize(TENSORS["lm_head.weight"]), rtol=2e-3, atol=2e-3)  # float16
