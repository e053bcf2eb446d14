"""The KV pool as the Metal kernels use it: the step's metadata made for them, pages written in place if asked for."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlxserve.backends.batch import HostBatch
from mlxserve.backends.mlx.batch import MlxPool
from mlxserve.backends.mlx.kernel_step import KernelStep, Slots, covered, is_decode, make_step
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
        self._all_covered = all(covered(layer.attention, block_size) for layer in spec.layers)
        self.readers = [mx.zeros((LEAST,), dtype) for _ in spec.layers]
        mx.eval(self.readers)
        super().__init__(spec, num_blocks, block_size, dtype)

    def clear(self, host: HostBatch) -> None:
        """The kernels read no place that was not written, so blocks that they began are cleared, from the end of each
        context on, only where MLX's attention reads them: two launches a layer less in a decode step."""
        if self._all_covered and self._takes(host):
            return
        ends = [
            (int(t[-1]), int(n) % self.block_size) for t, n in zip(host.block_tables, host.context_lens, strict=True)
        ]
        rest = [(block, place) for block, end in ends if end for place in range(end, self.block_size)]
        if rest:
            blocks, places = (mx.array(np.array(column, np.int32)) for column in zip(*rest, strict=True))
            for pool in (*self.k, *self.v):
                pool[blocks, :, places] = 0

    def _takes(self, host: HostBatch) -> bool:
        return is_decode(host) and self._variants.paged(len(host.tokens), int(host.context_lens.max()))

    def kernel_step(self, host: HostBatch) -> KernelStep | None:
        if not self._takes(host):
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
