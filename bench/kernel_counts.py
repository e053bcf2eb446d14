"""Counts one layer's decode work, launch by launch, in the kernel simulator: ours and MLX's kernels on the same arrays.

A launch's threadgroups do equal work, so a slice is simulated and multiplied: some rows of a weight, one KV head of one
sequence. tests/kernels/test_bench.py checks the multiplication on whole launches. Knows nothing of bars or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace

import mlx.core as mx
import numpy as np

from bench import mlx_kernels
from kernels.sim import Report, Simulator
from kernels.sim.factory import simulated
from mlxserve.backends.mlx.kernels import Heads, Kernels, PackedWeight, RmsNorm, Rotary, default_tile
from mlxserve.backends.mlx.page_plan import choose_chunk, make_plan, padded

GROUP, BITS, BLOCK = 64, 4, 16
SLICE = 64  # weight rows of a simulated product: a threadgroup's worth
WANTED_THREADGROUPS = 256  # for splits of the context: 8 for each of 32 cores
DTYPE = mx.float16


@dataclass(frozen=True)
class Shape:
    """A model's layer."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    width: int
    qk_norm: bool

    def products(self) -> dict[str, tuple[int, int, dict[str, bool]]]:
        """Weight rows, columns and form of each product."""
        qkv = (self.heads + 2 * self.kv_heads) * self.dim
        return {
            "qkv": (qkv, self.hidden, {"norm": True}),
            "o": (self.hidden, self.heads * self.dim, {"residual": True}),
            "gate_up": (2 * self.width, self.hidden, {"norm": True, "act": True}),
            "down": (self.hidden, self.width, {"residual": True}),
        }


MODELS = [
    Shape("Qwen3-0.6B", 1024, 16, 8, 128, 3072, True),
    Shape("Llama-3.2-3B", 3072, 24, 8, 128, 8192, False),
    Shape("Qwen3-8B", 4096, 32, 8, 128, 12288, True),
]


@dataclass(frozen=True)
class Cost:
    """What launches do. Streamed: packed weights with scales and biases, or K and V; ``needed`` is their size,
    ``read`` what lanes load of them. Other and partials: unique bytes read and written."""

    needed: float = 0
    read: float = 0
    other: float = 0
    partials: float = 0
    simd_operations: float = 0
    simd_steps: float = 0
    matrix_operations: float = 0
    threadgroup_barriers: float = 0
    lines128: float = 0  # lines of streamed arrays, once a simdgroup that touches them
    launches: int = 0

    def __add__(self, o: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(o, f.name) for f in fields(self)))


def cost(
    report: Report,
    times: float,
    *,
    streamed: Collection[str] = (),
    sliced: Collection[str] = (),
    partials: Collection[str] = (),
) -> Cost:
    """A simulated slice's report, multiplied: ``sliced`` buffers grow with the work, the others are shared."""
    total = Cost(
        simd_operations=report.simd_operations * times,
        simd_steps=report.simd_steps * times,
        matrix_operations=report.matrix_operations * times,
        threadgroup_barriers=report.threadgroup_barriers * times,
        launches=1,
    )
    for name, counts in report.buffers.items():
        unique = counts.unique_read + counts.unique_written
        if name in streamed:
            total += Cost(
                needed=counts.size * times, read=counts.read * times, lines128=counts.lines128 * times
            )  # fmt: skip
        elif name in partials:
            total += Cost(partials=unique * times)
        else:
            total += Cost(other=unique * (times if name in sliced else 1))
    return total


WEIGHT = ("packed", "scales", "biases")


class Counter:
    """Launches kernels in the simulator and keeps what they counted."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._sim = Simulator(vary=False, on_report=self._reports.append, seconds=600)
        self._kernels = Kernels(simulated(self._sim))
        self._rng = np.random.default_rng(0)

    def _random(self, *shape: int) -> mx.array:
        return mx.array(self._rng.standard_normal(shape).astype(np.float16))

    def _weight(self, n: int, k: int) -> PackedWeight:
        packed = mx.array(self._rng.integers(0, 2**32, (n, k * BITS // 32), dtype=np.uint64).astype(np.uint32))
        scales = 0.01 * self._random(n, k // GROUP)
        return PackedWeight(packed, scales, -8 * scales, BITS, GROUP)

    def product(self, n: int, k: int, rows: int, form: dict[str, bool], simulate: int = SLICE) -> Cost:
        """Our qmv_int4 with what it fuses."""
        parts = 2 if form.get("act") else 1
        self._kernels.qmv(
            self._random(rows, k),
            self._weight(simulate, k),
            norm=RmsNorm(self._random(k), 1e-6) if form.get("norm") else None,
            act="silu" if form.get("act") else None,
            residual=self._random(rows, simulate // parts) if form.get("residual") else None,
            tile=default_tile(n, bool(form.get("act"))),
        )
        return cost(self._reports[-1], n / simulate, streamed=WEIGHT, sliced=("y", "residual", "linear_bias"))

    def mlx_qmv(self, n: int, k: int, rows: int, simulate: int = SLICE) -> Cost:
        """MLX's vector product; norm, activation and residual, which are other launches there, are not counted."""
        w = self._weight(simulate, k)
        _, report = mlx_kernels.qmv(self._sim, self._random(rows, k), w.packed, w.scales, w.biases, GROUP, BITS)
        return cost(report, n / simulate, streamed=WEIGHT, sliced=("y",))

    def mlx_qmm(self, n: int, k: int, rows: int, simulate: int = SLICE) -> Cost:
        """MLX's tiled product, which it takes for more rows."""
        w = self._weight(simulate, k)
        _, report = mlx_kernels.qmm_t(self._sim, self._random(rows, k), w.packed, w.scales, w.biases, GROUP, BITS)
        return cost(report, n / simulate, streamed=WEIGHT, sliced=("y",))

    def attention(self, shape: Shape, rows: int, context: int, kv_heads: int = 1, sequences: int = 1) -> Cost:
        """Ours, with its reduce when the context is split."""
        group, begin = shape.heads // shape.kv_heads, len(self._reports)
        chunk = choose_chunk([context] * rows, shape.kv_heads, WANTED_THREADGROUPS)
        blocks = context // BLOCK
        tables = [list(range(i * blocks, (i + 1) * blocks)) for i in range(sequences)]
        plan = make_plan(tables, [context] * sequences, list(range(sequences + 1)), chunk)
        keys, values = (self._random(sequences * blocks, kv_heads, BLOCK, shape.dim) for _ in range(2))
        q = self._random(sequences, kv_heads * group, shape.dim)
        self._kernels.attention(q, keys, values, plan, scale=shape.dim**-0.5)
        times = rows * shape.kv_heads / (kv_heads * sequences)
        decode, *reduce = self._reports[begin:]
        per_row = ("queries", "out", "block_tables", "context_lens", "work")
        total = cost(
            decode,
            times,
            streamed=("key_pages", "value_pages"),
            sliced=() if reduce else per_row,
            partials=("out",) if reduce else (),
        )
        for report in reduce:
            total += cost(report, times, sliced=("out",), partials=("partials",))
        return total

    def mlx_attention(self, shape: Shape, rows: int, context: int) -> Cost:
        """sdpa_vector over contiguous keys and values; the gather that paged ones would need is not counted."""
        q = self._random(1, shape.heads // shape.kv_heads, shape.dim)
        keys, values = (self._random(1, 1, context, shape.dim) for _ in range(2))
        _, report = mlx_kernels.sdpa_vector(self._sim, q, keys, values, shape.dim**-0.5)
        return cost(report, rows * shape.kv_heads, streamed=("k", "v"), sliced=("q", "out"))

    def rotation(self, shape: Shape, rows: int) -> Cost:
        """qk_norm_rope: all of it other bytes."""
        heads = Heads(shape.heads, shape.kv_heads, shape.dim)
        norm = RmsNorm(self._random(shape.dim), 1e-6)
        self._kernels.qk_norm_rope(
            self._random(rows, (shape.heads + 2 * shape.kv_heads) * shape.dim),
            padded(range(rows)),
            Rotary(mx.ones((shape.dim // 2,))),
            heads,
            (norm, norm) if shape.qk_norm else None,
        )
        return cost(self._reports[-1], 1)

    def launches(self, shape: Shape, in_place: bool) -> int:
        """Kernel launches of one layer with a split context, counted on a layer made of our calls; the default mode
        adds one scatter each for K and V."""
        tiny = replace(shape, hidden=128, heads=4, kv_heads=2, dim=64, width=64)
        begin = len(self._reports)
        decode_layer(self._kernels, tiny, self._random, self._weight, in_place)
        return len(self._reports) - begin + (0 if in_place else 2)


def decode_layer(
    kernels: Kernels,
    shape: Shape,
    random: Callable[..., mx.array],
    weight: Callable[[int, int], PackedWeight],
    in_place: bool,
) -> mx.array:
    """One layer's decode of one sequence of 40 tokens, in chunks of 16."""
    x = random(1, shape.hidden)
    norm = RmsNorm(random(shape.hidden), 1e-6)
    keys, values = (random(3, shape.kv_heads, BLOCK, shape.dim) for _ in range(2))
    mx.eval(keys, values)
    heads, slot = Heads(shape.heads, shape.kv_heads, shape.dim), padded([39])
    products = {name: weight(n, k) for name, (n, k, _) in shape.products().items()}
    qkv = kernels.qmv(x, products["qkv"], norm=norm)
    rotary, written = Rotary(mx.ones((shape.dim // 2,))), None
    if in_place:
        q, written = kernels.kv_write(qkv, slot, rotary, heads, None, slot, keys, values, slot)
    else:
        q, k, v = kernels.qk_norm_rope(qkv, slot, rotary, heads, None)
        keys[2, :, 7], values[2, :, 7] = k[0], v[0]
    plan = make_plan([[0, 1, 2]], [40], [0, 1], 16)
    out = kernels.attention(q, keys, values, plan, scale=0.125, after=written)
    x = kernels.qmv(out.reshape(1, -1), products["o"], residual=x)
    hidden = kernels.qmv(x, products["gate_up"], norm=norm, act="silu")
    return kernels.qmv(hidden, products["down"], residual=x)
