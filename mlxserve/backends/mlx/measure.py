"""Times our kernels against MLX's operators for the same work, and makes the table of variants of the times.

Knows no command line. On a simulator the times mean nothing; that is for tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import mlx.core as mx
import numpy as np

from mlxserve.backends.mlx.attention import attend
from mlxserve.backends.mlx.backend import on_gpu
from mlxserve.backends.mlx.batch import Decode, Plan
from mlxserve.backends.mlx.kernels import MAX_ROWS, Kernels, PackedWeight, QmvTile
from mlxserve.backends.mlx.page_plan import choose_chunk, make_plan
from mlxserve.backends.mlx.variants import ANY, THREADGROUPS, Rule, dump_variants, gpu_generation
from mlxserve.errors import MlxserveError
from mlxserve.models.spec import AttentionSpec

DTYPE = mx.float16
BITS, GROUP = 4, 64
BLOCK = 16
TILES = (QmvTile(1, 4), QmvTile(2, 4), QmvTile(4, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is timed. ``width``: columns of the weights."""

    rows: Sequence[int] = (1, 2, 4, 8, 12, 16)
    weights: Sequence[int] = (1024, 4096, 16384)
    width: int = 4096
    sequences: Sequence[int] = (1, 4, 16)
    contexts: Sequence[int] = (512, 4096, 32768)
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    repeats: int = 20
    copied: int = 2**28  # bytes, to find the machine's bandwidth


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a call. ``size``: weight rows, or tokens of context. ``moved``: bytes that have to be read."""

    kernel: str
    rows: int
    size: int
    ours: float
    mlx: float
    moved: int
    rows_per_lane: int = 0

    @property
    def variant(self) -> str:
        return "ours" if self.ours < self.mlx else "mlx"


def microseconds(call: Callable[[], mx.array], repeats: int) -> float:
    """The best of three rounds of ``repeats`` calls that are evaluated together, after one that compiles."""
    mx.eval(call())

    def one_round() -> float:
        start = time.perf_counter()
        mx.eval([call() for _ in range(repeats)])
        return (time.perf_counter() - start) / repeats * 1e6

    return min(one_round() for _ in range(3))


def measure(kernels: Kernels, grid: Grid) -> Iterator[Timing]:
    """One after the other, so that a caller can show how far it is."""
    for n, rows in product(grid.weights, grid.rows):
        yield _product(kernels, grid, n, rows)
    for context, sequences in product(grid.contexts, grid.sequences):
        yield _attention(kernels, grid, context, sequences)


def bandwidth(grid: Grid) -> float:
    """GB/s of MLX reading and writing a large array."""
    x = mx.zeros((grid.copied // 4,), mx.float32)
    mx.eval(x)
    return 2 * grid.copied / microseconds(lambda: x + 1, 3) / 1e3


def _product(kernels: Kernels, grid: Grid, n: int, rows: int) -> Timing:
    packed, scales, biases = mx.quantize(mx.random.normal((n, grid.width)), GROUP, BITS)
    w = PackedWeight(packed, scales.astype(DTYPE), biases.astype(DTYPE), BITS, GROUP)
    x = mx.random.normal((rows, grid.width)).astype(DTYPE)
    mx.eval(x, w.packed, w.scales, w.biases)

    def ours(tile: QmvTile) -> Callable[[], mx.array]:
        return lambda: kernels.qmv(x, w, tile=tile)

    times = {tile: microseconds(ours(tile), grid.repeats) for tile in TILES}
    best = min(TILES, key=lambda tile: times[tile])
    mlx = microseconds(lambda: mx.quantized_matmul(x, w.packed, w.scales, w.biases, True, GROUP, BITS), grid.repeats)
    moved = w.packed.nbytes + w.scales.nbytes + w.biases.nbytes
    return Timing("product", rows, n, times[best], mlx, moved, best.rows_per_lane)


def _attention(kernels: Kernels, grid: Grid, context: int, sequences: int) -> Timing:
    """Against MLX's attention over gathered pages, which is what runs without the kernel."""
    spec = AttentionSpec(
        heads=grid.heads, kv_heads=grid.kv_heads, head_dim=grid.head_dim, scale=grid.head_dim**-0.5, rope=None
    )
    blocks = -(-context // BLOCK)
    # All sequences share pages: memory for 16 long contexts would not fit on a small machine.
    pages = [mx.random.normal((blocks, grid.kv_heads, BLOCK, grid.head_dim)).astype(DTYPE) for _ in range(2)]
    q = mx.random.normal((sequences, grid.heads, grid.head_dim)).astype(DTYPE)
    table = np.random.default_rng(0).permutation(blocks)
    contexts = [context] * sequences
    chunk = choose_chunk(contexts, grid.kv_heads, THREADGROUPS)
    plan = make_plan([table.tolist()] * sequences, contexts, list(range(sequences + 1)), chunk)
    seen = np.arange(blocks * BLOCK) < context
    tables = mx.array(np.tile(table.astype(np.int32), (sequences, 1)))
    gathered = Plan(Decode(None, tables, mx.array(np.tile(seen, (sequences, 1)))[:, None, None]), ())
    mx.eval(q, *pages, tables)
    ours = microseconds(lambda: kernels.attention(q, pages[0], pages[1], plan, scale=spec.scale), grid.repeats)
    mlx = microseconds(lambda: attend(q, pages[0], pages[1], spec, gathered), grid.repeats)
    return Timing("attention", sequences, context, ours, mlx, 2 * sequences * context * spec.kv_width * DTYPE.size)


def rules(timings: Sequence[Timing], generation: int) -> list[Rule]:
    """The faster one for each measured size and number of rows, and for those between it and the one before."""
    found = []
    for kernel, last_row in (("product", MAX_ROWS), ("attention", ANY)):
        ours = [t for t in timings if t.kernel == kernel]
        rows = _bands(sorted({t.rows for t in ours}), last_row)
        sizes = _bands(sorted({t.size for t in ours}), ANY)
        for t in ours:
            found.append(
                Rule(
                    kernel="product" if kernel == "product" else "attention",
                    variant="ours" if t.variant == "ours" else "mlx",
                    least_rows=rows[t.rows][0],
                    most_rows=rows[t.rows][1],
                    least_size=sizes[t.size][0],
                    most_size=sizes[t.size][1],
                    generation=generation,
                    rows_per_lane=t.rows_per_lane,
                    simdgroups=TILES[0].simdgroups if t.rows_per_lane else 0,
                )
            )
    return found


def _bands(values: Sequence[int], last: int) -> dict[int, tuple[int, int]]:
    """Each value with the range that ends at it; the last one's at ``last``."""
    ends = [*values[:-1], last]
    return {v: (before + 1, end) for v, (before, end) in zip(values, pairwise([0, *ends]), strict=True)}


def gpu_kernels() -> Kernels:
    """Raises MlxserveError where there is no GPU."""
    if not on_gpu():
        raise MlxserveError("`mlxserve bench kernels` times kernels on a GPU, and MLX finds none here")
    return Kernels()


def table_text(timings: Sequence[Timing]) -> str:
    """The file that ``MLXSERVE_KERNEL_TABLE`` names."""
    return dump_variants(rules(timings, gpu_generation()), THREADGROUPS)
