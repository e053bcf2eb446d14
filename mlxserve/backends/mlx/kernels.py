"""The Metal kernels as Python callables: binds one call's arrays to a kernel's parameters and variants.

Knows nothing of models or of which kernel runs when. ``references.py`` has the same functions in plain MLX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from mlxserve.backends.mlx.kernel_source import BuiltKernel, KernelFactory, metal, read_kernel
from mlxserve.backends.mlx.page_plan import PagePlan

Act = Literal["silu", "gelu_tanh"]
ACTS: dict[Act, int] = {"silu": 1, "gelu_tanh": 2}
MAX_ROWS = 16  # of qmv
MAX_QUERIES = 4  # query rows a sequence, of decode attention
HEAD_DIMS = (64, 80, 96, 128, 256)  # of decode attention


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """MLX's affine form of [N, K], 4 or 8 bits: packed [N, K * bits / 32] uint32, scales and biases [N, K / group]."""

    packed: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group_size: int


@dataclass(frozen=True, slots=True)
class RmsNorm:
    weight: mx.array
    eps: float


@dataclass(frozen=True, slots=True)
class Rotary:
    """Inverse frequencies [dims / 2] float32, none when nothing is rotated; ``factor`` multiplies cosine and sine."""

    inverse_frequencies: mx.array | None
    factor: float = 1.0

    @property
    def dims(self) -> int:
        return 0 if self.inverse_frequencies is None else 2 * self.inverse_frequencies.size


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class QmvTile:
    """How qmv is cut: weight rows a lane holds at once (with an activation an even number) and simdgroups a
    threadgroup. Results do not depend on it."""

    rows_per_lane: int
    simdgroups: int


def default_tile(n: int, fused: bool) -> QmvTile:
    """Enough threadgroups for a GPU's cores first, then more reuse of x. ``n``: rows of the weight."""
    rows = 4 if n >= 8192 else 2
    return QmvTile(rows if fused or n >= 2048 else 1, 4)


class Kernels:
    """Every kernel, built once by a factory. One thread uses it; calls describe work and return lazy arrays (those of a
    simulator are computed at once)."""

    def __init__(self, factory: KernelFactory = metal) -> None:
        self._factory = factory
        self._built: dict[str, BuiltKernel] = {}
        self._constants: dict[tuple[str, tuple[float, ...]], mx.array] = {}
        self._unused: dict[mx.Dtype, mx.array] = {}

    def _run(
        self,
        name: str,
        inputs: Sequence[mx.array],
        outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]],
        template: Sequence[tuple[str, Any]],
        threadgroups: tuple[int, int, int],
        threads: int,
    ) -> list[mx.array]:
        if name not in self._built:
            self._built[name] = self._factory(read_kernel(name))
        return self._built[name](
            inputs=list(inputs),
            output_shapes=[shape for shape, _ in outputs],
            output_dtypes=[dtype for _, dtype in outputs],
            template=list(template),
            grid=(threadgroups[0] * threads, threadgroups[1], threadgroups[2]),
            threadgroup=(threads, 1, 1),
        )

    def _ints(self, *values: int, least: int = 8) -> mx.array:
        return self._constant("i", values, least, mx.int32)

    def _floats(self, *values: float, least: int = 8) -> mx.array:
        return self._constant("f", values, least, mx.float32)

    def _constant(self, kind: str, values: Sequence[float], least: int, dtype: mx.Dtype) -> mx.array:
        key = (f"{kind}{least}", tuple(values))
        if key not in self._constants:
            self._constants[key] = mx.array([*values, *[0] * (least - len(values))], dtype)
        return self._constants[key]

    def _placeholder(self, dtype: mx.Dtype) -> mx.array:
        """Bound where a variant reads nothing; of 8 elements, for fewer would change the kernel's signature."""
        if dtype not in self._unused:
            self._unused[dtype] = mx.zeros((8,), dtype)
        return self._unused[dtype]

    def qmv(
        self,
        x: mx.array,
        w: PackedWeight,
        *,
        norm: RmsNorm | None = None,
        act: Act | None = None,
        bias: mx.array | None = None,
        residual: mx.array | None = None,
        alpha: float = 1.0,
        tile: QmvTile | None = None,
    ) -> mx.array:
        """residual + alpha * act(norm(x) W^T + bias) for x [1..16, K]: [rows, N]; with ``act`` W is gate | up and the
        result act(gate) * up [rows, N / 2]. norm, act, bias and residual are each optional. A row's bits depend on
        neither the other rows nor the tile."""
        rows, k = x.shape
        n = w.packed.shape[0]
        assert rows <= MAX_ROWS
        assert act is None or n % 2 == 0
        tile = tile or default_tile(n, act is not None)
        held = next(m for m in (1, 2, 4, 8, 16) if m >= rows)
        n_out = n // 2 if act else n
        outputs_each = tile.rows_per_lane // 2 if act else tile.rows_per_lane
        each = 4 * outputs_each * tile.simdgroups
        unused = self._placeholder(x.dtype)
        template = [
            *(("T", x.dtype), ("BITS", w.bits), ("GROUP", w.group_size), ("M", held), ("R", tile.rows_per_lane)),
            *(("SG", tile.simdgroups), ("NORM", norm is not None), ("ACT", ACTS[act] if act else 0)),
            *(("BIAS", bias is not None), ("RESIDUAL", residual is not None)),
        ]
        inputs = [
            *(x, w.packed, w.scales, w.biases, unused if norm is None else norm.weight),
            unused if residual is None else residual,
            unused if bias is None else bias,
            self._ints(n, k, rows, least=4),
            self._floats(0.0 if norm is None else norm.eps, alpha, least=4),
        ]
        threadgroups = (-(-n_out // each), 1, 1)
        return self._run("qmv_int4", inputs, [((rows, n_out), x.dtype)], template, threadgroups, 32 * tile.simdgroups)[
            0
        ]

    def qk_norm_rope(
        self, qkv: mx.array, positions: mx.array, rotary: Rotary, heads: Heads, norms: tuple[RmsNorm, RmsNorm] | None
    ) -> tuple[mx.array, mx.array, mx.array]:
        """q|k|v [T, (query + 2 kv) * dim] -> q [T, query, dim], k and v [T, kv, dim]; q and k normed, a head at a time,
        and rotated. positions [max(T, 8)] int32, padded."""
        t = qkv.shape[0]
        shapes = [((t, n, heads.dim), qkv.dtype) for n in (heads.query, heads.kv, heads.kv)]
        inputs, template = self._rotation(qkv, positions, rotary, heads, norms)
        q, k, v = self._run(
            "qk_norm_rope",
            [*inputs, *self._rotation_constants(rotary, heads, norms)],
            shapes,
            template,
            (1, heads.query + 2 * heads.kv, t),
            32,
        )
        return q, k, v

    def kv_write(
        self,
        qkv: mx.array,
        positions: mx.array,
        rotary: Rotary,
        heads: Heads,
        norms: tuple[RmsNorm, RmsNorm] | None,
        slots: mx.array,
        key_pages: mx.array,
        value_pages: mx.array,
        after: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """qk_norm_rope with k and v written into the pages in place, at ``slots`` [max(T, 8)] int32.

        Returns q and a token that every later reader of the pages must take as an input. ``after``: an array of 8
        elements or more that every earlier reader of the pages had to finish for.
        """
        t = qkv.shape[0]
        inputs, template = self._rotation(qkv, positions, rotary, heads, norms)
        q, written = self._run(
            "kv_write",
            [*inputs, slots, key_pages, value_pages, after, *self._rotation_constants(rotary, heads, norms)],
            [((t, heads.query, heads.dim), qkv.dtype), ((8,), mx.uint32)],
            [*template, ("BLOCK", key_pages.shape[2])],
            (1, heads.query + 2 * heads.kv, t),
            32,
        )
        return q, written

    def _rotation(
        self, qkv: mx.array, positions: mx.array, rotary: Rotary, heads: Heads, norms: tuple[RmsNorm, RmsNorm] | None
    ) -> tuple[list[mx.array], list[tuple[str, Any]]]:
        frequencies = rotary.inverse_frequencies
        weights = [n.weight for n in norms] if norms else [self._placeholder(qkv.dtype)] * 2
        inputs = [qkv, positions, self._placeholder(mx.float32) if frequencies is None else frequencies, *weights]
        return inputs, [("T", qkv.dtype), ("D", heads.dim), ("ROT", rotary.dims), ("NORM", norms is not None)]

    def _rotation_constants(
        self, rotary: Rotary, heads: Heads, norms: tuple[RmsNorm, RmsNorm] | None
    ) -> tuple[mx.array, mx.array]:
        return self._ints(heads.query, heads.kv), self._floats(norms[0].eps if norms else 0.0, rotary.factor)

    def attention(
        self,
        q: mx.array,
        key_pages: mx.array,
        value_pages: mx.array,
        plan: PagePlan,
        *,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: mx.array | None = None,
        after: mx.array | None = None,
    ) -> mx.array:
        """q [T, heads, D], 1 to 4 rows a sequence, over pages [blocks, kv_heads, block_size, D]: [T, heads, D].

        ``sinks`` [max(heads, 8)] float32 join each head's softmax as one more score. ``after``: kv_write's token.
        """
        _, kv_heads, block_size, dim = key_pages.shape
        t, heads, _ = q.shape
        group = heads // kv_heads
        tiles = 2 if group * plan.max_queries > 8 else 1
        simdgroups = 2 if dim > 128 else 4  # two tiles of a wide head would not fit in threadgroup memory
        row_groups = -(-group * plan.max_queries // (8 * tiles))
        output: tuple[tuple[int, ...], mx.Dtype] = ((t, heads, dim), q.dtype)
        if plan.split:
            output = ((plan.items, plan.max_queries, heads, dim + 2), mx.float32)
        template = [
            *(("T", q.dtype), ("D", dim), ("BLOCK", block_size), ("G", group), ("Q", plan.max_queries)),
            *(("TILES", tiles), ("SG", simdgroups), ("SPLIT", plan.split)),
        ]
        sink_values = self._placeholder(mx.float32) if sinks is None else sinks
        inputs = [
            *(q, key_pages, value_pages, plan.block_tables, plan.context_lens, plan.query_starts, plan.work),
            *(sink_values, self._placeholder(mx.uint32) if after is None else after),
            self._ints(kv_heads, plan.max_blocks, window or 0, plan.chunk, int(sinks is not None)),
            self._floats(scale, soft_cap or 0.0),
        ]
        grid = (kv_heads * row_groups, plan.items, 1)
        (out,) = self._run("paged_attention_decode", inputs, [output], template, grid, 32 * simdgroups)
        if not plan.split:
            return out
        return self._run(
            "paged_attention_reduce",
            [out, plan.partial_starts, plan.query_starts, sink_values, self._ints(heads, int(sinks is not None))],
            [((t, heads, dim), q.dtype)],
            [("T", q.dtype), ("D", dim), ("Q", plan.max_queries)],
            (1, heads, plan.sequences * plan.max_queries),
            32,
        )[0]
