"""Arrays as a kernel's memory: MLX's or numpy's, where they lie when they can. Knows nothing of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np


@dataclass
class Buffer:
    """Memory of one kernel argument. Vectors are loaded whole, so it must begin at a multiple of 16 bytes."""

    name: str
    data: np.ndarray[Any, Any]
    writable: bool = False
    uninitialised: bool = False


def to_numpy(array: mx.array | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array's own memory; bfloat16 as uint16."""
    if isinstance(array, np.ndarray):
        return array
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    mx.eval(array)
    return np.asarray(memoryview(array)) if array.ndim else np.array(array)


def to_mlx(array: np.ndarray[Any, Any], dtype: mx.Dtype) -> mx.array:
    return mx.array(array).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(array)


def dtype_name(dtype: mx.Dtype | np.dtype[Any]) -> str:
    return str(dtype).rpartition(".")[2]


def numpy_dtype(dtype: mx.Dtype) -> np.dtype[Any]:
    name = dtype_name(dtype)
    return np.dtype("uint16" if name == "bfloat16" else name)


def aligned(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy at a multiple of 16 bytes: MLX's CPU allocator gives 8, Metal's a page."""
    if data.ctypes.data % 16 == 0 or not data.flags.c_contiguous:
        return data
    memory = np.empty(data.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    copy = memory[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    np.copyto(copy, data)
    return copy


def span(data: np.ndarray[Any, Any]) -> int:
    """Bytes from an array's first element to its last, strides included."""
    if data.size == 0:
        return 0
    return sum((n - 1) * s for n, s in zip(data.shape, data.strides, strict=True)) + data.itemsize
