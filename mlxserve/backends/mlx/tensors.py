"""Host tensors as MLX arrays; quantised ones stay packed."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlxserve.formats.tensors import DenseDtype, DenseTensor

DTYPES: dict[DenseDtype, mx.Dtype] = {
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
}


def to_mlx(tensor: DenseTensor, dtype: mx.Dtype) -> mx.array:
    if tensor.dtype == "bfloat16":
        return mx.array(np.ascontiguousarray(tensor.data).view(np.uint16)).view(mx.bfloat16).astype(dtype)
    return mx.array(tensor.data).astype(dtype)
