"""The decoder's operators in MLX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np

from mlxserve.backends.mlx.attention import attend
from mlxserve.backends.mlx.batch import MlxBatch
from mlxserve.backends.mlx.linear import MlxExperts, MlxLinear, join, stack
from mlxserve.backends.mlx.tensors import to_mlx
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor
from mlxserve.models.ops import AttentionLayer, Experts, Linear, Norm, Ops
from mlxserve.models.spec import Activation, Rope

ACTIVATIONS: Mapping[Activation, Callable[[mx.array], mx.array]] = {
    "silu": lambda x: x * mx.sigmoid(x),
    "gelu": lambda x: x * (1 + mx.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


class MlxOps(Ops[mx.array, MlxBatch]):
    def __init__(self, dtype: mx.Dtype) -> None:
        self.dtype = dtype
        self._periods: dict[Rope, mx.array] = {}

    def weight_bytes(self, tensor: HostTensor) -> int:
        match tensor:
            case DenseTensor():
                return math.prod(tensor.shape) * self.dtype.size
            case AffineTensor():
                return tensor.packed.nbytes + 2 * math.prod(tensor.scales.shape) * self.dtype.size

    def make_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor]) -> Linear:
        return MlxLinear(join(weights, self.dtype), self._vectors(biases) if biases else None)

    def make_embedding(self, weight: HostTensor, head: bool) -> Linear:
        return MlxLinear(join([weight], self.dtype), None)

    def make_vector(self, tensor: HostTensor, offset: float) -> mx.array:
        assert isinstance(tensor, DenseTensor), "vectors are never quantised"
        vector = (to_mlx(tensor, mx.float32) + offset).astype(self.dtype)
        mx.eval(vector)
        return vector

    def make_experts(self, gate: Sequence[HostTensor], up: Sequence[HostTensor], down: Sequence[HostTensor]) -> Experts:
        return MlxExperts(stack(gate, self.dtype), stack(up, self.dtype), stack(down, self.dtype))

    def _vectors(self, tensors: Sequence[HostTensor]) -> mx.array:
        vector = mx.concatenate([self.make_vector(t, 0.0) for t in tensors])
        mx.eval(vector)
        return vector

    def embedding(self, ids: mx.array, w: Linear) -> mx.array:
        assert isinstance(w, MlxLinear)
        (matrix,) = w.matrices
        return matrix.rows(ids)

    def linear(self, x: mx.array, w: Linear) -> mx.array:
        assert isinstance(w, MlxLinear)
        return w(x)

    def rms_norm(self, x: mx.array, norm: Norm[mx.array]) -> mx.array:
        return mx.fast.rms_norm(x, norm.weight, norm.eps)

    def rope(self, x: mx.array, layer: AttentionLayer[mx.array], batch: MlxBatch) -> mx.array:
        rope = layer.spec.rope
        assert rope is not None
        if rope.factor != 1:
            # The rotation is linear: a factor on cosine and sine is one on the rotated values.
            rotated = x[..., : rope.dims] * rope.factor
            x = rotated if rope.dims == x.shape[-1] else mx.concatenate([rotated, x[..., rope.dims :]], axis=-1)
        # Each token is a sequence of length one that starts at its own position.
        y = mx.fast.rope(
            x[:, :, None],
            rope.dims,
            traditional=False,
            base=None,
            scale=1.0,
            offset=batch.positions,
            freqs=self._periods_of(rope),
        )
        return y.squeeze(2)

    def _periods_of(self, rope: Rope) -> mx.array:
        """MLX wants the inverses of the frequencies."""
        if rope not in self._periods:
            self._periods[rope] = mx.array((1 / np.array(rope.inv_freq)).astype(np.float32))
        return self._periods[rope]

    def glu(self, gate_up: mx.array, act: Activation) -> mx.array:
        gate, up = mx.split(gate_up, 2, axis=-1)
        return ACTIVATIONS[act](gate) * up

    def route(self, logits: mx.array, top_k: int, normalise: bool) -> tuple[mx.array, mx.array]:
        p = mx.softmax(logits, axis=-1, precise=True)
        ids = mx.argpartition(-p, kth=top_k - 1, axis=-1)[..., :top_k]
        weights = mx.take_along_axis(p, ids, axis=-1)
        return (weights / weights.sum(-1, keepdims=True) if normalise else weights), ids

    def experts(self, x: mx.array, weights: mx.array, ids: mx.array, e: Experts, act: Activation) -> mx.array:
        assert isinstance(e, MlxExperts)
        x = x[:, None, None]
        h = ACTIVATIONS[act](e.gate.gather(x, ids)) * e.up.gather(x, ids)
        y = e.down.gather(h, ids).squeeze(-2)
        return (y * weights[..., None]).sum(-2)

    def attention(
        self, q: mx.array, k: mx.array, v: mx.array, layer: AttentionLayer[mx.array], batch: MlxBatch
    ) -> mx.array:
        k_pages, v_pages = batch.pool.write(layer.index, k, v, batch.blocks, batch.offsets)
        return attend(q, k_pages, v_pages, layer.spec, batch.plan(layer.index))

    def split(self, x: mx.array, *sizes: int) -> tuple[mx.array, ...]:
        return tuple(mx.split(x, list(np.cumsum(sizes[:-1])), axis=1))

    def concat(self, x: mx.array, y: mx.array) -> mx.array:
        return mx.concatenate([x, y], axis=1)

    def heads(self, x: mx.array, n: int) -> mx.array:
        return x.reshape(x.shape[0], n, -1)

    def take(self, x: mx.array, rows: mx.array) -> mx.array:
        return x[rows]

    def scaled(self, x: mx.array, factor: float) -> mx.array:
        return x * factor

    def add(self, x: mx.array, y: mx.array, alpha: float) -> mx.array:
        return x + y if alpha == 1 else x + alpha * y

    def soft_cap(self, x: mx.array, cap: float) -> mx.array:
        return cap * mx.tanh(x / cap)
