"""Work for each kernel, its answer by the plain reference in float32, and what a launch may read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np

from kernels.sim import Report, Simulator
from kernels.sim.factory import simulated
from mlxserve.backends.mlx import references
from mlxserve.backends.mlx.kernel_source import KernelSource
from mlxserve.backends.mlx.kernels import Act, Heads, Kernels, PackedWeight, QmvTile, RmsNorm, Rotary
from mlxserve.backends.mlx.page_plan import PagePlan, make_plan, padded

# Rounding of the output to the dtype, with room for a different order of float32 sums.
TOLERANCE = {mx.float32: 5e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}


def f32(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def random(rng: np.random.Generator, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


def check_close(got: mx.array, wanted: mx.array, dtype: mx.Dtype, what: str) -> None:
    """Within the dtype's rounding of the largest value. Not-a-numbers fail."""
    difference = np.abs(np.array(f32(got)) - np.array(wanted))
    limit = TOLERANCE[dtype] * max(1e-3, float(mx.abs(wanted).max())) if wanted.size else 0.0
    assert (difference <= limit).all(), f"{what}: off by {difference.max()}, limit {limit}"


class Rig:
    """Kernels in the simulator, perhaps with one source changed, and the reports of their launches."""

    def __init__(
        self, sim: Simulator | None = None, change: Callable[[KernelSource], KernelSource] | None = None
    ) -> None:
        self.reports: list[Report] = []
        build = simulated(replace(sim or Simulator(), on_report=self.reports.append))
        self.kernels = Kernels(build if change is None else lambda source: build(change(source)))

    def report(self, kernel: str) -> Report:
        return [r for r in self.reports if r.kernel == kernel][-1]

    def check_read_once(self, kernel: str, sizes: dict[str, int]) -> None:
        """Each byte that the work needs is loaded by one lane, once, and no other byte is."""
        for name, size in sizes.items():
            counts = self.report(kernel).buffers[name]
            assert (counts.read, counts.unique_read) == (size, size), f"{kernel} reads {name}: {counts}, needs {size}"


@dataclass(frozen=True)
class Qmv:
    rows: int
    n: int
    k: int
    dtype: mx.Dtype = mx.float16
    bits: int = 4
    group: int = 64
    norm: bool = False
    act: Act | None = None
    bias: bool = False
    residual: bool = False
    tile: QmvTile | None = None
    weight_dtype: mx.Dtype | None = None  # of scales, biases and the norm's weight, where it is not x's

    @property
    def _weights(self) -> mx.Dtype:
        return self.weight_dtype or self.dtype

    def weight(self, rng: np.random.Generator) -> PackedWeight:
        packed, scales, biases = mx.quantize(random(rng, self.n, self.k), self.group, self.bits)
        return PackedWeight(packed, scales.astype(self._weights), biases.astype(self._weights), self.bits, self.group)

    def arguments(self, rng: np.random.Generator) -> tuple[mx.array, dict[str, Any]]:
        """x and the options."""
        n_out = self.n // 2 if self.act else self.n
        return random(rng, self.rows, self.k, dtype=self.dtype), {
            "norm": RmsNorm(random(rng, self.k, dtype=self._weights), 1e-5) if self.norm else None,
            "act": self.act,
            "bias": random(rng, self.n, dtype=self.dtype) if self.bias else None,
            "residual": random(rng, self.rows, n_out, dtype=self.dtype) if self.residual else None,
            "alpha": 0.5 if self.residual else 1.0,
        }

    def check(self, rig: Rig) -> None:
        rng = np.random.default_rng(self.rows + self.n + self.k)
        w = self.weight(rng)
        x, options = self.arguments(rng)
        got = rig.kernels.qmv(x, w, tile=self.tile, **options)
        wide = {k: f32(v) if isinstance(v, mx.array) else v for k, v in options.items()}
        if self.norm:
            wide["norm"] = RmsNorm(f32(options["norm"].weight), 1e-5)
        wide_w = replace(w, scales=f32(w.scales), biases=f32(w.biases))
        check_close(got, references.qmv(f32(x), wide_w, **wide), self.dtype, str(self))
        rig.check_read_once(
            "qmv_int4", {n: getattr(w, n).nbytes for n in ("packed", "scales", "biases")}
        )  # fmt: skip


@dataclass(frozen=True)
class Attention:
    lengths: tuple[int, ...]
    queries: tuple[int, ...]  # rows a sequence
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    block: int = 16
    dtype: mx.Dtype = mx.float16
    chunk: int = 4096
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False

    def options(self, rng: np.random.Generator) -> dict[str, Any]:
        sinks = random(rng, max(8, self.heads)) if self.sinks else None
        return {"scale": self.dim**-0.5, "window": self.window, "soft_cap": self.soft_cap, "sinks": sinks}

    def pages(self, rng: np.random.Generator) -> tuple[mx.array, mx.array, list[list[int]]]:
        """K and V pages in random order, not-a-number wherever no token lies, and the block tables."""
        needed = [max(1, -(-n // self.block)) for n in self.lengths]
        order = rng.permutation(sum(needed) + 3).tolist()
        tables = [[order.pop() for _ in range(n)] for n in needed]
        pools = []
        for _ in range(2):
            pool = np.full((sum(needed) + 3, self.kv_heads, self.block, self.dim), np.nan, np.float32)
            for length, table in zip(self.lengths, tables, strict=True):
                for start in range(0, length, self.block):
                    count = min(self.block, length - start)
                    rows = rng.standard_normal((self.kv_heads, count, self.dim))
                    pool[table[start // self.block], :, :count] = rows
            pools.append(mx.array(pool).astype(self.dtype))
        return pools[0], pools[1], tables

    def plan(self, tables: Sequence[Sequence[int]]) -> PagePlan:
        starts = [0, *np.cumsum(self.queries).tolist()]
        return make_plan(tables, self.lengths, starts, self.chunk)

    def needed_bytes(self) -> int:
        """Of K, and of V: each token that some query sees, for each KV head."""
        seen = 0
        for length, queries in zip(self.lengths, self.queries, strict=True):
            first = max(0, length - queries + 1 - self.window) if self.window else 0
            seen += length - first
        return seen * self.kv_heads * self.dim * self.dtype.size

    def check(self, rig: Rig) -> None:
        rng = np.random.default_rng(sum(self.lengths) + self.dim)
        keys, values, tables = self.pages(rng)
        q = random(rng, sum(self.queries), self.heads, self.dim, dtype=self.dtype)
        options = self.options(rng)
        got = rig.kernels.attention(q, keys, values, self.plan(tables), **options)
        at = 0
        for length, count, table in zip(self.lengths, self.queries, tables, strict=True):
            rows = slice(at, at + count)
            wanted = references.attention(
                f32(q[rows]), f32(keys), f32(values), mx.array(table), length, **options
            )  # fmt: skip
            check_close(got[rows], wanted, self.dtype, f"{self}, context {length}")
            at += count
        needed = self.needed_bytes()
        if self.heads // self.kv_heads * max(self.queries) <= 16:  # more rows take more threadgroups
            rig.check_read_once("paged_attention_decode", {"key_pages": needed, "value_pages": needed})


@dataclass(frozen=True)
class Rope:
    tokens: int
    heads: Heads = field(default_factory=lambda: Heads(4, 2, 64))
    rot: int = 64
    norm: bool = True
    dtype: mx.Dtype = mx.float16
    factor: float = 1.0
    block: int = 16

    def arguments(self, rng: np.random.Generator) -> tuple[mx.array, mx.array, Rotary, tuple[RmsNorm, RmsNorm] | None]:
        qkv = random(rng, self.tokens, (self.heads.query + 2 * self.heads.kv) * self.heads.dim, dtype=self.dtype)
        positions = padded(rng.integers(0, 4000, self.tokens))
        frequencies = mx.array(10000.0 ** (-np.arange(0, self.rot, 2) / self.rot), mx.float32) if self.rot else None
        weights = [RmsNorm(random(rng, self.heads.dim, dtype=self.dtype), 1e-6) for _ in range(2)]
        return qkv, positions, Rotary(frequencies, self.factor), (weights[0], weights[1]) if self.norm else None

    def wanted(
        self, qkv: mx.array, positions: mx.array, rotary: Rotary, norms: tuple[RmsNorm, RmsNorm] | None
    ) -> tuple[mx.array, mx.array, mx.array]:
        wide = None if norms is None else (RmsNorm(f32(norms[0].weight), 1e-6), RmsNorm(f32(norms[1].weight), 1e-6))
        return references.qk_norm_rope(f32(qkv), positions, rotary, self.heads, wide)

    def check(self, rig: Rig) -> None:
        arguments = self.arguments(np.random.default_rng(self.tokens))
        qkv, positions, rotary, norms = arguments
        got = rig.kernels.qk_norm_rope(qkv, positions, rotary, self.heads, norms)
        for name, g, w in zip("qkv", got, self.wanted(*arguments), strict=True):
            check_close(g, w, self.dtype, f"{self}: {name}")

    def check_write(self, rig: Rig) -> None:
        """kv_write leaves the pages as a scatter of qk_norm_rope's rows does, and nothing else touched."""
        rng = np.random.default_rng(self.tokens)
        qkv, positions, rotary, norms = self.arguments(rng)
        shape = (self.tokens + 2, self.heads.kv, self.block, self.heads.dim)
        before = [random(rng, *shape, dtype=self.dtype) for _ in range(2)]
        slots = rng.permutation(shape[0] * self.block)[: self.tokens].astype(np.int32)
        pages = [mx.array(p) for p in before]
        mx.eval(pages)
        skipped = slots.copy()
        skipped[0] = -1
        q, _ = rig.kernels.kv_write(
            qkv, positions, rotary, self.heads, norms, padded(skipped), pages[0], pages[1], mx.zeros((8,))
        )  # fmt: skip
        wanted = self.wanted(qkv, positions, rotary, norms)
        check_close(q, wanted[0], self.dtype, f"{self}: q")
        for name, page, old, rows in zip("kv", pages, before, wanted[1:], strict=True):
            scattered = references.write_pages(f32(old), rows[1:], mx.array(slots[1:]))
            check_close(page, scattered, self.dtype, f"{self}: {name} pages")
            same = np.array(mx.all(page == old, axis=(1, 3)))  # [blocks, block]
            untouched = np.ones(shape[0] * self.block, bool)
            untouched[slots[1:]] = False
            assert same.reshape(-1)[untouched].all(), f"{self}: wrote a slot that is not its own"
