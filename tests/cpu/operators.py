"""Runs single C++ operators on torch tensors, and says in float64 what they should give."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from mlxserve.backends.torch.native.library import (
    LOGITS,
    AnglesStruct,
    AttentionStruct,
    BatchStruct,
    Library,
    OperatorKind,
    OperatorStruct,
    StepStruct,
)
from mlxserve.backends.torch.native.weights import NativeLinear
from mlxserve.formats.affine import pack as pack_codes
from mlxserve.formats.tensors import AffineTensor, DenseTensor

Tensor = torch.Tensor


def affine(
    seed: int, n: int, k: int, bits: int, group: int, *, symmetric: bool = False, wide: bool = False
) -> AffineTensor:
    """Random codes; the scales are halves unless ``wide``."""
    rng = np.random.default_rng(seed)
    packed = pack_codes(rng.integers(0, 2**bits, (n, k), dtype=np.uint8), bits)
    scales = rng.uniform(0.01, 0.05, (n, k // group)).astype(np.float32 if wide else np.float16)
    middle = 2 ** (bits - 1)
    biases = (
        -middle * scales if symmetric else (-middle * scales * rng.uniform(0.8, 1.2, scales.shape)).astype(scales.dtype)
    )
    dtype = "float32" if wide else "float16"
    return AffineTensor(packed, DenseTensor(scales, dtype), DenseTensor(biases, dtype), bits, group)


def quantized_rows(x: Tensor) -> Tensor:
    """Each row in blocks of 32 rounded to 8 bits, as float64."""
    blocks = x.view(x.shape[0], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, torch.zeros(()))
    codes = torch.round(blocks * inverse)
    return (codes.double() * (largest / 127.0).double()).view(x.shape)


@dataclass
class Product:
    """One operator that multiplies."""

    kind: OperatorKind
    linear: NativeLinear
    norm: Tensor | None = None
    residual: Tensor | None = None
    alpha: float = 1.0
    eps: float = 1e-5
    activation: int = 0

    def __call__(self, library: Library, x: Tensor) -> Tensor:
        rows, width = len(x), self.linear.outputs // (2 if self.kind is OperatorKind.NORM_GLU else 1)
        residual = torch.zeros(rows, 0) if self.residual is None else self.residual[:rows]
        arena = torch.cat([x.reshape(-1), residual.reshape(-1)])
        out = torch.full((rows, width), 7.0)
        operators = (OperatorStruct * 1)(
            OperatorStruct(
                kind=self.kind,
                weights=ctypes.addressof(self.linear.struct),
                norm=None if self.norm is None else self.norm.data_ptr(),
                x=0,
                residual=x.shape[1],
                out=LOGITS,
                width=width,
                activation=self.activation,
                eps=self.eps,
                alpha=self.alpha,
            )
        )
        step = StepStruct(arena=arena.data_ptr(), logits=out.data_ptr())
        step.batch.tokens = rows
        library.run(operators, step)
        return out


@dataclass
class Attention:
    """One layer and the pages of a ragged batch: ``sequences`` are (queries, context length)."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    sequences: list[tuple[int, int]]
    window: int = 0
    soft_cap: float = 0.0
    rotary: int | None = None
    sinks: Tensor | None = None
    head_norm: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.seed)
        needed = [-(-c // self.block_size) for _, c in self.sequences]
        blocks = torch.randperm(sum(needed) + 2, generator=g)
        self.tables = [t.int() for t in blocks[: sum(needed)].split(needed)]
        shape = (len(blocks), self.kv_heads, self.block_size, self.head_dim)
        # What was never written is not-a-number: nothing of it may be seen.
        self.k, self.v = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        self.rotary = self.head_dim if self.rotary is None else self.rotary
        self.scale = 2 * self.head_dim**-0.5
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.history = [torch.randn(c, width, generator=g) for _, c in self.sequences]
        self.q_norm, self.k_norm = (
            1 + 0.1 * torch.randn(n * (self.head_dim if self.head_norm == 2 else 1), generator=g)
            for n in ((self.heads, self.kv_heads) if self.head_norm == 2 else (self.head_dim, self.head_dim))
        )

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        assert self.rotary is not None
        frequencies = 10000.0 ** (-torch.arange(0, self.rotary, 2) / max(self.rotary, 1))
        angles = positions[:, None].float() * frequencies
        return angles.cos().contiguous(), angles.sin().contiguous()

    def run(self, library: Library, parts: list[tuple[int, int, int]]) -> list[Tensor]:
        """One step: of each (sequence, first, end) the tokens' outputs [end - first, heads * head_dim]."""
        positions = torch.cat([torch.arange(a, b) for _, a, b in parts]).int()
        slots = torch.cat([self._slots(s, torch.arange(a, b)) for s, a, b in parts])
        qkv = torch.cat([self.history[s][a:b] for s, a, b in parts])
        starts = torch.tensor([0, *np.cumsum([b - a for _, a, b in parts])]).int()
        contexts = torch.tensor([b for _, _, b in parts]).int()
        tables = torch.zeros(len(parts), max(map(len, self.tables)), dtype=torch.int32)
        for row, (s, _, _) in zip(tables, parts, strict=True):
            row[: len(self.tables[s])] = self.tables[s]
        cos, sin = self.angles(positions)
        angles = (AnglesStruct * 1)(AnglesStruct(cos.data_ptr(), sin.data_ptr()))
        layer = AttentionStruct(
            self.k.data_ptr(), self.v.data_ptr(), self.q_norm.data_ptr(), self.k_norm.data_ptr(),
            None if self.sinks is None else self.sinks.data_ptr(), self.heads, self.kv_heads, self.head_dim,
            self.block_size, self.window, self.rotary, self.head_norm, self.scale, self.soft_cap, 1e-5,
        )  # fmt: skip
        out = torch.full((len(qkv), self.heads * self.head_dim), 7.0)
        operators = (OperatorStruct * 1)(
            OperatorStruct(kind=OperatorKind.ATTEND, layer=ctypes.addressof(layer), x=0, out=LOGITS)
        )
        batch = BatchStruct(
            positions.data_ptr(), slots.data_ptr(), starts.data_ptr(), contexts.data_ptr(), tables.data_ptr(),
            len(qkv), len(parts), tables.shape[1],
        )  # fmt: skip
        arena = qkv.reshape(-1).clone()
        step = StepStruct(batch=batch, angles=ctypes.addressof(angles), arena=arena.data_ptr(), logits=out.data_ptr())
        library.run(operators, step)
        return list(out.split([b - a for _, a, b in parts]))

    def _slots(self, s: int, positions: Tensor) -> Tensor:
        return (self.tables[s][positions // self.block_size] * self.block_size + positions % self.block_size).int()

    def expected(self, s: int) -> Tensor:
        """Every token's output of one sequence, in float64."""
        x = self.history[s].double().view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = x.split([self.heads, self.kv_heads, self.kv_heads], 1)
        if self.head_norm:
            q, k = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        cos, sin = (a.double()[:, None] for a in self.angles(torch.arange(len(x))))
        q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.scale
        if self.soft_cap:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        age = torch.arange(len(x))[:, None] - torch.arange(len(x))
        hidden = (age < 0) | (age >= self.window if self.window else age < 0)
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.double()[:, None, None].expand(-1, len(x), 1)], -1)
        weights = torch.softmax(scores, -1)[..., : len(x)]
        return torch.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        dims = (-2, -1) if self.head_norm == 2 else (-1,)
        y = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + 1e-5)
        return y * weight.double().view(*(x.shape[1:] if self.head_norm == 2 else (self.head_dim,)))

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        assert self.rotary is not None
        a, b, rest = x.split([self.rotary // 2, self.rotary // 2, self.head_dim - self.rotary], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
