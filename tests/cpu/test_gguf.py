"""GGUF's types on the C++ operators: packed with float16 or float32 scales, expanded, and mixed within one product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind

from mlxserve.backends.torch.native.backend import NativeBackend
from mlxserve.backends.torch.native.library import Library, OperatorKind
from mlxserve.backends.torch.native.weights import Form, fused_bytes, pack
from mlxserve.config import EngineConfig
from mlxserve.formats.affine import dequantize
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.gguf import TensorInfo
from mlxserve.formats.gguf_blocks import decode
from mlxserve.formats.tensors import AffineTensor, HostTensor
from mlxserve.planning import footprint
from tests.cpu.operators import Product, quantized_rows
from tests.formats.gguf_files import draw_blocks
from tests.models.harness import Model, difference
from tests.models.test_gguf import QWEN2_WIDE, quantised

KINDS = (Kind.Q4_0, Kind.Q4_K, Kind.Q5_0, Kind.Q5_1, Kind.Q5_K, Kind.Q6_K, Kind.Q8_0)


def tensor(kind: Kind, rows: int) -> HostTensor:
    raw = draw_blocks(kind, (rows, 512), 0.1)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return decode(raw.reshape(-1), TensorInfo("t", (rows, 512), kind, 0, rows * 512 // block * block_bytes))


@pytest.mark.parametrize("form", ["int4", "int8"])
@pytest.mark.parametrize(
    "kinds",
    [*((kind,) for kind in KINDS), (Kind.Q4_K, Kind.Q4_0), (Kind.Q4_K, Kind.Q5_K), (Kind.Q4_K, Kind.Q5_0, Kind.Q6_K)],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
def test_products(library: Library, form: Form, kinds: tuple[Kind, ...]) -> None:
    """Packed weights meet activations rounded to 8 bits, floats meet floats; else the sum is exact to rounding."""
    parts = [tensor(kind, 24 + 8 * i) for i, kind in enumerate(kinds)]
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0))
    linear = pack(library, form, parts)
    found = Product(OperatorKind.NORM_LINEAR, linear)(library, x)
    padding = -linear.outputs % 16 / linear.outputs
    counted = fused_bytes(parts, form)
    assert linear.data.nbytes <= counted * (1 + padding)
    assert linear.data.nbytes >= 0.9 * counted, "a symmetric type's biases are not stored"
    weight = torch.cat([torch.from_numpy(dequantize(part)) for part in parts]).double()
    packed = len({(p.bits, p.group_size) if isinstance(p, AffineTensor) else None for p in parts} - {None}) == 1
    packed = packed and all(isinstance(p, AffineTensor) for p in parts)
    wanted = (quantized_rows(x) if packed else x.double()) @ weight.T
    assert (found - wanted).abs().max() <= 1e-5 * float(x.norm(dim=1).max() * weight.norm(dim=1).max())


def test_a_file_of_several_types(library: Library, tmp_path: Path) -> None:
    """Within what activations of 8 bits cost in a model of 2 layers with random weights; and weighed rightly."""
    file, want = quantised(None, tmp_path)
    checkpoint = open_checkpoint(str(file))
    model = Model(checkpoint, NativeBackend(library, "int4"))
    assert difference(model.logits(QWEN2_WIDE.token_ids(), "prefill"), want) < 0.1
    plan = footprint(checkpoint, NativeBackend(library, "int4"), EngineConfig(max_num_seqs=4))
    assert plan.weights.total == model.loaded.weight_bytes
