"""What mlx-lm's models call a cache, over our pages.

A model is called with [B, n] tokens: one sequence with a chunk of n, or B sequences with one token each. For each layer
it asks the cache for the offset of the first token, for a mask, and hands it the new K and V in exchange for all of
them. Windows need no cache of their own: their mask says which keys count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from mlxserve.backends.mlx.batch import MlxPool


@dataclass(slots=True)
class Part:
    """The B * n tokens of one call, L = M * block_size keys."""

    offset: int | mx.array  # tokens before them; [B] for several sequences
    positions: mx.array  # [B, n]
    blocks: mx.array  # [B * n] where their K and V are written: the block ...
    places: mx.array  # [B * n] ... and the place in it
    tables: mx.array  # [B, M]
    keys: int  # keys in use: L or, for one sequence, its context length
    masks: dict[int | None, mx.array] = field(default_factory=dict)

    def mask(self, window: int | None) -> mx.array:
        """[B, 1, n, keys], or [n, keys] for one sequence."""
        if window not in self.masks:
            keys, queries = mx.arange(self.keys), self.positions[:, None, :, None]
            seen = keys <= queries
            if window is not None:
                seen = seen & (keys > queries - window)
            self.masks[window] = seen if len(self.tables) > 1 else seen[0, 0]
        return self.masks[window]


class PagedCache:
    """One layer's cache for one call."""

    def __init__(self, pool: MlxPool, layer: int, part: Part, width: int, v_width: int) -> None:
        self._pool = pool
        self._layer = layer
        self._part = part
        self._widths = (width, v_width)
        self.offset = part.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """[B, kv_heads, n, width] -> [B, kv_heads, keys, width]"""
        pages = self._pool.write(
            self._layer, self._rows(keys), self._rows(values), self._part.blocks, self._part.places
        )
        self.offset = self.offset + keys.shape[2]
        k, v = (self._gather(p, width) for p, width in zip(pages, self._widths, strict=True))
        return k, v

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._part.mask(window_size)

    def size(self) -> int:
        return self._part.keys

    def empty(self) -> bool:
        return False

    def is_trimmable(self) -> bool:
        return False

    def _rows(self, x: mx.array) -> mx.array:
        """[B, kv_heads, n, width] -> [B * n, kv_heads, the pages' width], zeros at the end."""
        batch, kv_heads, n, width = x.shape
        rows = x.swapaxes(1, 2).reshape(batch * n, kv_heads, width)
        return mx.pad(rows, [(0, 0), (0, 0), (0, self._pool.width(self._layer) - width)])

    def _gather(self, pages: mx.array, width: int) -> mx.array:
        batch = len(self._part.tables)
        gathered = pages[self._part.tables].swapaxes(1, 2).reshape(batch, pages.shape[1], -1, pages.shape[3])
        return gathered[:, :, : self._part.keys, :width]


@dataclass(slots=True)
class Probe:
    """A cache that only notes what a layer keeps."""

    kv_heads: int = 0
    width: int = 0
    v_width: int = 0
    offset: int = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert keys.shape[:3] == values.shape[:3]
        self.kv_heads, self.width, self.v_width = keys.shape[1], keys.shape[3], values.shape[3]
        return keys, values

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> None:
        return None

    def size(self) -> int:
        return 0

    def empty(self) -> bool:
        return True

    def is_trimmable(self) -> bool:
        return False
