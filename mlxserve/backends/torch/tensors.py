"""Host tensors as torch tensors, without loss where the dtype allows."""

from __future__ import annotations

import numpy as np
import torch

from mlxserve.formats.affine import dequantize
from mlxserve.formats.tensors import AffineTensor, DenseDtype, DenseTensor, HostTensor

DTYPES: dict[DenseDtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def to_torch(tensor: HostTensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of its own memory in ``dtype``; quantised rows are expanded in float32."""
    match tensor:
        case DenseTensor():
            return dense(tensor).to(dtype, copy=True)
        case AffineTensor():
            return torch.from_numpy(dequantize(tensor)).to(dtype)


def dense(tensor: DenseTensor) -> torch.Tensor:
    """In the tensor's own dtype; shares its memory where that is writable."""
    data = np.require(tensor.data, requirements=["C", "W"])
    if tensor.dtype == "bfloat16":
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(data)
