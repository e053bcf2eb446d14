"""The affine grid that fits a group of weights best: w ~ scale * q + bias with integers q of a few bits.

Knows numbers only, no tensors' names.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np
from numpy.typing import NDArray

from mlxserve.formats.affine import pack, to_bfloat16, to_float32
from mlxserve.formats.tensors import AffineTensor, DenseDtype, DenseTensor

Floats = NDArray[np.float32]

# Widths of the grid to try, relative to the group's range: a narrower grid clips the extremes but is finer within.
_WIDTHS = tuple(np.linspace(0.65, 1.05, 9, dtype=np.float32).tolist())
_REFINEMENTS = 2
_BLOCK = 2**16  # weights handled at a time: the temporaries stay in a core's cache


def quantize(
    weights: Floats, bits: int, group_size: int, dtype: DenseDtype, importance: Floats | None = None
) -> AffineTensor:
    """Quantises [..., N, K] weights along K, a multiple of ``group_size``. ``dtype``: of scales and biases.

    Minimises the sum of ``importance[k] * error**2`` in each group: every width of the grid is tried with its best
    scale and bias by least squares; the best is refined by alternating between rounding and least squares.
    ``importance`` has K positive elements; None counts all alike. Weights are finite; where float16 is too short for
    them, float32 takes its place.
    """
    if dtype == "float16" and np.abs(weights).max(initial=0) > np.finfo(np.float16).max:
        dtype = "float32"
    *lead, width = weights.shape
    assert width % group_size == 0
    groups = np.ascontiguousarray(weights).reshape(-1, group_size)
    pattern = None
    if importance is not None:
        pattern = np.ascontiguousarray(importance, np.float32).reshape(-1, group_size)
    columns = width // group_size
    step = max(1, _BLOCK // width) * columns  # whole rows, so that the importance repeats

    def one(start: int) -> tuple[NDArray[np.uint8], Floats, Floats]:
        x = groups[start : start + step]
        w = None if pattern is None else np.tile(pattern, (len(x) // columns, 1))
        return _fit(x, w, 2**bits - 1, dtype)

    with ThreadPoolExecutor(cpu_count()) as pool:
        parts = list(pool.map(one, range(0, len(groups), step)))
    q, scales, biases = (np.concatenate(column) for column in zip(*parts, strict=True))
    return AffineTensor(
        packed=pack(q.reshape(weights.shape), bits),
        scales=_stored(scales.reshape(*lead, columns), dtype),
        biases=_stored(biases.reshape(*lead, columns), dtype),
        bits=bits,
        group_size=group_size,
    )


def _fit(x: Floats, w: Floats | None, levels: int, dtype: DenseDtype) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Integers, scales and biases of groups [n, g]; the latter two as ``dtype`` can hold them."""
    low, high = x.min(axis=1), x.max(axis=1)
    middle, range_step = low + (high - low) / 2, (high - low) / levels
    flat = range_step == 0
    range_step[flat] = 1
    sums = _Sums(x - middle[:, None], w)  # centred: float32 sums then lose nothing that matters
    scale, bias = range_step, low - middle
    best_error = np.full(len(x), np.inf, np.float32)
    for width in _WIDTHS:
        step = range_step * np.float32(width)
        s, b, error = sums.solve(_round(sums.x, step, step * np.float32(-levels / 2), levels), step)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scale, bias = np.where(better, s, scale), np.where(better, b, bias)
    for _ in range(_REFINEMENTS):
        scale, bias, _ = sums.solve(_round(sums.x, scale, bias, levels), scale)
    scale = to_float32(_stored(np.where(flat, 0, scale), dtype))
    bias = to_float32(_stored(np.where(flat, low, bias + middle), dtype))
    q = _round(x, np.where(scale == 0, 1, scale), bias, levels)
    return q.astype(np.uint8), scale, bias


def _round(x: Floats, scale: Floats, bias: Floats, levels: int) -> Floats:
    q = x - bias[:, None]
    q *= (1 / scale)[:, None]
    np.rint(q, out=q)
    return np.clip(q, 0, levels, out=q)


class _Sums:
    """Weighted least squares of w ~ scale * q + bias, group by group, for many q of the same weights."""

    def __init__(self, x: Floats, w: Floats | None) -> None:
        self.x = x
        self.w = w
        self.weight = np.full(len(x), x.shape[1], np.float32) if w is None else w.sum(axis=1)
        self.wx = x if w is None else w * x
        self.sum_x = self.wx.sum(axis=1)
        self.sum_xx = np.einsum("ij,ij->i", self.wx, x)

    def solve(self, q: Floats, fallback: Floats) -> tuple[Floats, Floats, Floats]:
        """Scale, bias and the weighted squared error; ``fallback`` is the scale where all q are equal."""
        wq = q if self.w is None else self.w * q
        sum_q = wq.sum(axis=1)
        sum_qq = np.einsum("ij,ij->i", wq, q)
        sum_qx = np.einsum("ij,ij->i", self.wx, q)
        determinant = self.weight * sum_qq - sum_q * sum_q
        usable = determinant > 0
        slope = (self.weight * sum_qx - sum_q * self.sum_x) / np.where(usable, determinant, 1)
        scale = np.where(usable & (slope > 0), slope, fallback).astype(np.float32)
        bias = (self.sum_x - scale * sum_q) / self.weight
        error = self.sum_xx - bias * self.sum_x - scale * sum_qx
        return scale, bias, error


def _stored(values: Floats, dtype: DenseDtype) -> DenseTensor:
    if dtype == "bfloat16":
        return DenseTensor(to_bfloat16(values), dtype)
    return DenseTensor(values.astype(dtype), dtype)
