"""Host tensors into the packed matrices of ``kernels/cpu/weights.h``.

Codes and scales are kept exactly as the checkpoint has them; only their order changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from mlxserve.backends.torch.native.library import Library, Storage, WeightsStruct
from mlxserve.backends.torch.tensors import DTYPES, dense, to_torch
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor
from mlxserve.models.ops import Linear

Form = Literal["int4", "int8"]  # how codes of at most 4 bits are kept

_DENSE_STORAGE = {
    torch.float32: Storage.FLOAT32,
    torch.bfloat16: Storage.BFLOAT16,
    torch.float16: Storage.HALF,
}


@dataclass(frozen=True, slots=True)
class NativeLinear(Linear):
    """y = x W^T + b. ``struct`` points into ``data`` and ``bias``."""

    struct: WeightsStruct
    data: torch.Tensor  # uint8
    bias: torch.Tensor | None  # [N] float32

    @property
    def outputs(self) -> int:
        return int(self.struct.outputs)

    @property
    def inputs(self) -> int:
        return int(self.struct.inputs)


def pack(library: Library, form: Form, parts: Sequence[HostTensor], biases: Sequence[HostTensor] = ()) -> NativeLinear:
    """One matrix whose rows are those of ``parts``, one after the other."""
    quantized = _quantized_alike(parts)
    struct, data = _pack_quantized(library, form, quantized) if quantized else _pack_dense(library, parts)
    bias = torch.cat([to_torch(b, torch.float32) for b in biases]) if biases else None
    struct.bias = None if bias is None else bias.data_ptr()
    return NativeLinear(struct, data, bias)


def packed_bytes(tensor: HostTensor, form: Form) -> int:
    """What a matrix of this tensor takes, its last tile's padding aside."""
    return fused_bytes([tensor], form)


def fused_bytes(parts: Sequence[HostTensor], form: Form) -> int:
    """The same for a matrix of several: those that are not all of one kind become floats, and one's wide scales are
    all parts'."""
    quantized = _quantized_alike(parts)
    if not quantized:
        return sum(math.prod(p.shape) for p in parts) * _float_type(parts).itemsize
    scale_and_bias = 4 if all(p.scales.dtype == "float16" for p in quantized) else 8
    codes_a_byte = 2 if storage_of(quantized[0].bits, form) is Storage.INT4 else 1
    return sum(math.prod(p.shape) // codes_a_byte + p.scales.data.size * scale_and_bias for p in quantized)


def _quantized_alike(parts: Sequence[HostTensor]) -> list[AffineTensor]:
    """The parts when codes and groups have one width in all of them; else none."""
    quantized = [p for p in parts if isinstance(p, AffineTensor)]
    alike = len(quantized) == len(parts) and len({(p.bits, p.group_size) for p in quantized}) == 1
    return quantized if alike else []


def _float_type(parts: Sequence[HostTensor]) -> torch.dtype:
    """The parts' own where they have one, else float32."""
    dtypes = {DTYPES[p.dtype] if isinstance(p, DenseTensor) else torch.float32 for p in parts}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def storage_of(bits: int, form: Form) -> Storage:
    return Storage.INT4 if bits <= 4 and form == "int4" else Storage.INT8


def _pack_quantized(library: Library, form: Form, parts: Sequence[AffineTensor]) -> tuple[WeightsStruct, torch.Tensor]:
    first = parts[0]
    scales = torch.cat([dense(p.scales).float() for p in parts])
    biases = torch.cat([dense(p.biases).float() for p in parts])
    storage = storage_of(first.bits, form)
    middle = 8 if storage is Storage.INT4 else 128
    struct = WeightsStruct(
        storage=storage,
        wide_scales=not (_fits_half(scales) and _fits_half(biases)),
        symmetric=torch.equal(biases, -middle * scales),
        outputs=len(scales),
        inputs=first.shape[-1],
        group=first.group_size,
    )
    data = allocate(library, struct)
    words = torch.cat([torch.from_numpy(p.packed.view("int32").copy()) for p in parts])
    library.pack_quantized(struct, words.data_ptr(), first.bits, scales.data_ptr(), biases.data_ptr())
    return struct, data


def _pack_dense(library: Library, parts: Sequence[HostTensor]) -> tuple[WeightsStruct, torch.Tensor]:
    dtype = _float_type(parts)
    values = torch.cat([to_torch(p, dtype) for p in parts])
    struct = WeightsStruct(storage=_DENSE_STORAGE[dtype], outputs=values.shape[0], inputs=values.shape[1])
    data = allocate(library, struct)
    library.pack_dense(struct, values.data_ptr())
    return struct, data


def allocate(library: Library, struct: WeightsStruct) -> torch.Tensor:
    """Zeroed tiles for the matrix; ``struct`` points at them."""
    data = torch.zeros(library.weight_bytes(struct), dtype=torch.uint8)
    assert data.data_ptr() % 64 == 0
    struct.data = data.data_ptr()
    return data


def _fits_half(values: torch.Tensor) -> bool:
    return torch.equal(values.half().float(), values)
