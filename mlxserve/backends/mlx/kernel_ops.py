"""The decoder's operators with the Metal kernels: fused, for few rows and paged decode attention.

What a kernel does not cover goes to MLX's own operators, one operator at a time: prefill, more rows than a kernel
takes, dense weights, other bit widths, norms over all heads together, norms after a block, other activations.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlxserve.backends.mlx.batch import MlxBatch
from mlxserve.backends.mlx.kernel_pool import KernelPool
from mlxserve.backends.mlx.kernel_step import KernelStep, covered
from mlxserve.backends.mlx.kernels import (
    ACTS,
    MAX_ROWS,
    Act,
    Heads,
    Kernels,
    PackedWeight,
    QmvTile,
    RmsNorm,
    Rotary,
)
from mlxserve.backends.mlx.linear import Affine, MlxLinear
from mlxserve.backends.mlx.ops import MlxOps
from mlxserve.backends.mlx.variants import Variants
from mlxserve.models.ops import AttentionLayer, Linear, Norm
from mlxserve.models.spec import Activation, Rope

BITS = (4, 8)
GROUPS = (32, 64, 128)
LEAST = 8  # elements of an array that a kernel takes from device memory


class KernelOps(MlxOps):
    def __init__(self, dtype: mx.Dtype, kernels: Kernels, variants: Variants, *, in_place: bool) -> None:
        super().__init__(dtype)
        self._kernels = kernels
        self._variants = variants
        self._in_place = in_place
        self._rotaries: dict[Rope | None, Rotary] = {None: Rotary(None)}

    # Products

    def linear(self, x: mx.array, w: Linear) -> mx.array:
        return self._product(x, None, w)

    def norm_linear(self, x: mx.array, norm: Norm[mx.array] | None, w: Linear) -> mx.array:
        return self._product(x, norm, w)

    def linear_residual(
        self, x: mx.array, w: Linear, residual: mx.array, post_norm: Norm[mx.array] | None, alpha: float
    ) -> mx.array:
        packed, tile = self._choose(x, w)
        if packed is None or post_norm is not None:
            return super().linear_residual(x, w, residual, post_norm, alpha)
        bias = _bias(w)
        return self._kernels.qmv(x, packed, bias=bias, residual=residual, alpha=alpha, tile=tile)

    def norm_glu(self, x: mx.array, norm: Norm[mx.array] | None, gate_up: Linear, act: Activation) -> mx.array:
        packed, tile = self._choose(x, gate_up, fused=True)
        if packed is None or act not in ACTS:
            return super().norm_glu(x, norm, gate_up, act)
        fused: Act = act
        return self._kernels.qmv(x, packed, norm=_rms(norm), act=fused, bias=_bias(gate_up), tile=tile)

    def _product(self, x: mx.array, norm: Norm[mx.array] | None, w: Linear) -> mx.array:
        packed, tile = self._choose(x, w)
        if packed is None:
            return super().linear(x if norm is None else self.rms_norm(x, norm), w)
        return self._kernels.qmv(x, packed, norm=_rms(norm), bias=_bias(w), tile=tile)

    def _choose(self, x: mx.array, w: Linear, fused: bool = False) -> tuple[PackedWeight | None, QmvTile | None]:
        """The weight in the kernel's form, None where MLX's product is to be used."""
        assert isinstance(w, MlxLinear)
        rows = x.shape[0]
        if not 0 < rows <= MAX_ROWS or len(w.matrices) > 1:
            return None, None
        matrix = w.matrices[0]
        if not isinstance(matrix, Affine) or matrix.bits not in BITS or matrix.group_size not in GROUPS:
            return None, None
        if min(matrix.scales.size, x.size) < LEAST:
            return None, None
        n = matrix.packed.shape[0]
        choice = self._variants.product(rows, n)
        if choice.mlx:
            return None, None
        packed = PackedWeight(matrix.packed, matrix.scales, matrix.biases, matrix.bits, matrix.group_size)
        return packed, choice.tile if not fused or choice.fits_fused else None

    # Attention

    def attend(self, qkv: mx.array, layer: AttentionLayer[mx.array], batch: MlxBatch) -> mx.array:
        step, pool = batch.kernels, batch.pool
        if step is None or not covered(layer.spec, pool.block_size):
            out = super().attend(qkv, layer, batch)
            return pool.read(layer.index, out) if isinstance(pool, KernelPool) else out
        assert isinstance(pool, KernelPool)
        out = self._attend_pages(qkv, layer, step, pool)
        return out.reshape(-1, layer.spec.q_width)

    def _attend_pages(
        self, qkv: mx.array, layer: AttentionLayer[mx.array], step: KernelStep, pool: KernelPool
    ) -> mx.array:
        s, i = layer.spec, layer.index
        rotary, heads = self._rotary(s.rope), Heads(s.heads, s.kv_heads, s.head_dim)
        norms = None
        if s.qk_norm is not None:
            assert layer.q_norm is not None
            assert layer.k_norm is not None
            norms = (RmsNorm(layer.q_norm.weight, layer.q_norm.eps), RmsNorm(layer.k_norm.weight, layer.k_norm.eps))
        written = None
        if self._in_place:
            q, written = self._kernels.kv_write(
                qkv, step.positions, rotary, heads, norms, step.slots, pool.k[i], pool.v[i], pool.readers[i]
            )
        else:
            q, k, v = self._kernels.qk_norm_rope(qkv, step.positions, rotary, heads, norms)
            pool.scatter(i, k, v, step.scatter[s.kv_heads])
        out = self._kernels.attention(
            *(q, pool.k[i], pool.v[i], step.pages),
            scale=s.scale,
            window=s.window,
            soft_cap=s.soft_cap,
            after=written,
        )
        if self._in_place:
            pool.readers[i] = out
        return out

    def _rotary(self, rope: Rope | None) -> Rotary:
        if rope not in self._rotaries:
            assert rope is not None
            self._rotaries[rope] = Rotary(mx.array(np.array(rope.inv_freq, np.float32)), rope.factor)
        return self._rotaries[rope]


def _rms(norm: Norm[mx.array] | None) -> RmsNorm | None:
    return None if norm is None else RmsNorm(norm.weight, norm.eps)


def _bias(w: Linear) -> mx.array | None:
    assert isinstance(w, MlxLinear)
    return w.bias
