"""The KV pool as the Metal kernels use it: the step's metadata made for them, pages written in place if asked for."""

from __future__ import annotations

import mlx.core as mx

from mlxserve.backends.batch import HostBatch
from mlxserve.backends.mlx.batch import MlxPool
from mlxserve.backends.mlx.kernel_step import KernelStep, Slots, is_decode, make_step
from mlxserve.backends.mlx.variants import Variants
from mlxserve.models.spec import ModelSpec

LEAST = 8  # elements of an array that orders one launch behind another


class KernelPool(MlxPool):
    """Writing in place is unseen by MLX, so it is ordered by data both ways: the attention takes an output of the write
    as an input, and the next write one of what read the pages last, ``readers`` by layer."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: mx.Dtype, variants: Variants, *, in_place: bool
    ) -> None:
        self._variants = variants
        self._in_place = in_place
        self.readers = [mx.zeros((LEAST,), dtype) for _ in spec.layers]
        mx.eval(self.readers)
        super().__init__(spec, num_blocks, block_size, dtype)

    def kernel_step(self, host: HostBatch) -> KernelStep | None:
        if not is_decode(host) or not self._variants.paged(len(host.tokens), int(host.context_lens.max())):
            return None
        return make_step(host, {a.kv_heads for a in self.layers}, self._variants.threadgroups)

    def scatter(self, layer: int, k: mx.array, v: mx.array, slots: Slots) -> None:
        """k and v [T, kv_heads, D] into the layer's pages, by MLX's own operator."""
        self.k[layer][slots] = k
        self.v[layer][slots] = v

    def read(self, layer: int, out: mx.array) -> mx.array:
        """``out``, which MLX's operators made of the layer's pages; the next write in place waits for it."""
        if not self._in_place:
            return out
        # A few elements computed along with it: to keep it all until then would take its memory.
        reader = out.reshape(-1)[:LEAST] * 1
        self.readers[layer] = reader
        ordered: mx.array = mx.depends(out, reader)
        return ordered

    def _grow(self, blocks: int) -> None:
        if self._in_place:
            mx.synchronize()  # MLX does not know that a step still under way writes what is copied here
        super()._grow(blocks)
