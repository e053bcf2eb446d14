"""The attention implementations side by side on a toy pool: how far from the definition, and how long."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from mlxserve.backends.batch import host_batch
from mlxserve.backends.torch.attention_kinds import KINDS
from mlxserve.backends.torch.tiles import TiledPool
from mlxserve.engine.interfaces import ForwardBatch
from mlxserve.models.ops import AttentionLayer
from mlxserve.models.spec import AttentionSpec

_REPEATS = 5


_SPEC = AttentionSpec(heads=8, kv_heads=2, head_dim=64, scale=0.125, rope=None)


@dataclass(frozen=True, slots=True)
class Toy:
    """Sequences of one query each, and one more with a chunk of ``chunk`` queries; every one sees ``context`` keys."""

    sequences: int = 4
    context: int = 200
    chunk: int = 32
    block_size: int = 16
    spec: AttentionSpec = _SPEC


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation's outcome."""

    name: str
    difference: float  # the largest, from the reference
    milliseconds: float  # median


@torch.inference_mode()
def compare(toy: Toy) -> list[Row]:
    """Every implementation on the same keys, values and queries; the reference first."""
    batch, blocks = _batch(toy)
    pool = TiledPool([toy.spec], blocks, toy.block_size, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for pages in (*pool.k_pools, *pool.v_pools):
        pages.normal_(generator=generator)
    device_batch = pool.batch(host_batch(batch, toy.block_size), None)
    tokens, s = len(batch.tokens), toy.spec
    q, k, v = (torch.randn(tokens, n, s.head_dim, generator=generator) for n in (s.heads, s.kv_heads, s.kv_heads))
    layer: AttentionLayer[torch.Tensor] = AttentionLayer(0, s)
    outputs, times = {}, {}
    for name in ("reference", *(kind for kind in KINDS if kind != "reference")):
        ops = KINDS[name](torch.float32)
        runs = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            outputs[name] = ops.attention(q, k, v, layer, device_batch)
            runs.append(time.perf_counter() - start)
        times[name] = statistics.median(runs) * 1000
    want = outputs["reference"]
    return [Row(name, float((out - want).abs().max()), times[name]) for name, out in outputs.items()]


def _batch(toy: Toy) -> tuple[ForwardBatch, int]:
    """The last tokens of every sequence, in blocks that are scattered over the pool; and the pool's size."""
    per_sequence = -(-toy.context // toy.block_size)
    count = toy.sequences + 1
    order = torch.randperm(count * per_sequence, generator=torch.Generator().manual_seed(1)).tolist()
    b = ForwardBatch(
        tokens=array("i"),
        positions=array("i"),
        slots=array("i"),
        query_starts=array("i", [0]),
        context_lens=array("i"),
        block_tables=[],
        late_tokens=[],
        page_copies=[],
        logit_rows=array("i"),
    )
    for first, last in pairwise(range(0, len(order) + 1, per_sequence)):
        table = order[first:last]
        new = min(toy.chunk, toy.context) if last == len(order) else 1
        for position in range(toy.context - new, toy.context):
            b.tokens.append(0)
            b.positions.append(position)
            b.slots.append(table[position // toy.block_size] * toy.block_size + position % toy.block_size)
        b.query_starts.append(len(b.tokens))
        b.context_lens.append(toy.context)
        b.block_tables.append(array("i", table))
    return b, len(order)


def shown(rows: list[Row]) -> Iterator[str]:
    """One line a row."""
    yield f"{'attention':<12}{'ms':>8}   largest difference from the reference"
    for row in rows:
        yield f"{row.name:<12}{row.milliseconds:>8.2f}   {row.difference:.1e}"
