"""KV pages and a step's metadata in the form that ``kernels/cpu`` reads."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mlxserve.backends.base import KVPool
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.torch.batch import copy_pages, lazy_zeros, token_ids
from mlxserve.backends.torch.native.library import AnglesStruct, BatchStruct
from mlxserve.models.ops import DeviceBatch
from mlxserve.models.spec import ModelSpec, Rope

Int32s = NDArray[np.int32]

# Rows of a batch that holds no data; any two different numbers.
TOKEN_ROWS = 2
LOGIT_ROWS = 1


@dataclass(slots=True)
class NativeBatch(DeviceBatch[torch.Tensor]):
    """``struct`` and ``angles`` point into ``arrays`` and ``tables``."""

    struct: BatchStruct
    angles: ctypes.Array[AnglesStruct]
    arrays: tuple[Int32s, ...]
    tables: tuple[torch.Tensor, ...]


class NativePool(KVPool[torch.Tensor, NativeBatch]):
    """The pages come from zeroed memory that the system provides when it is first touched."""

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int) -> None:
        layers = [layer.attention for layer in spec.layers]
        shapes = [(num_blocks, a.kv_heads, block_size, a.head_dim) for a in layers]
        self.block_size = block_size
        self.k_pools = [lazy_zeros(shape, torch.float32) for shape in shapes]
        self.v_pools = [lazy_zeros(shape, torch.float32) for shape in shapes]
        self._ropes = tuple(dict.fromkeys(a.rope for a in layers if a.rope is not None))
        self._frequencies = tuple(torch.tensor(rope.inv_freq, dtype=torch.float32) for rope in self._ropes)

    def angles_of(self, rope: Rope | None) -> int:
        """The index into a batch's angles."""
        return 0 if rope is None else self._ropes.index(rope)

    def batch(self, host: HostBatch, late_tokens: torch.Tensor | None) -> NativeBatch:
        copy_pages(host, (*self.k_pools, *self.v_pools))
        tokens = token_ids(host, late_tokens)
        arrays = (
            host.positions.astype(np.int32),
            (host.blocks * host.block_size + host.offsets).astype(np.int32),
            host.query_starts.astype(np.int32),
            host.context_lens.astype(np.int32),
            _padded(host),
        )
        struct = BatchStruct(*(a.ctypes.data for a in arrays), len(tokens), len(arrays[3]), arrays[4].shape[1])
        tables = self._angle_tables(host)
        pairs = [(tables[i].data_ptr(), tables[i + 1].data_ptr()) for i in range(0, len(tables), 2)]
        angles = (AnglesStruct * max(len(pairs), 1))(*(AnglesStruct(*pair) for pair in pairs))
        return NativeBatch(tokens, torch.from_numpy(host.logit_rows), struct, angles, arrays, tables)

    def _angle_tables(self, host: HostBatch) -> tuple[torch.Tensor, ...]:
        """cos and sin [T, dims / 2] of every RoPE, one after the other."""
        positions = torch.from_numpy(host.positions).float()[:, None]
        tables: list[torch.Tensor] = []
        for rope, frequencies in zip(self._ropes, self._frequencies, strict=True):
            angles = positions * frequencies
            tables += (angles.cos().mul_(rope.factor), angles.sin().mul_(rope.factor))
        return tuple(tables)


def shapes() -> NativeBatch:
    """A batch of meta tensors, to trace a decoder with: TOKEN_ROWS tokens, LOGIT_ROWS rows of logits."""
    tokens, rows = (torch.empty(n, dtype=torch.int64, device="meta") for n in (TOKEN_ROWS, LOGIT_ROWS))
    return NativeBatch(tokens, rows, BatchStruct(), (AnglesStruct * 0)(), (), ())


def _padded(host: HostBatch) -> Int32s:
    """[S, M] block tables."""
    out = np.zeros((len(host.block_tables), max(t.size for t in host.block_tables)), np.int32)
    for row, table in zip(out, host.block_tables, strict=True):
        row[: table.size] = table
    return out
