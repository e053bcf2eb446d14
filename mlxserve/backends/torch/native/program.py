"""A traced forward pass bound to a KV pool: one call into C++ a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from mlxserve.backends.torch.native.library import (
    LOGITS,
    AttentionStruct,
    HeadNorm,
    Library,
    OperatorKind,
    OperatorStruct,
    StepStruct,
)
from mlxserve.backends.torch.native.ops import Operator, Traced
from mlxserve.backends.torch.native.pool import NativeBatch, NativePool
from mlxserve.models.ops import AttentionLayer

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
HEAD_NORMS = {None: HeadNorm.NONE, "head": HeadNorm.PER_HEAD, "width": HeadNorm.FULL_WIDTH}


class Program:
    """Not thread-safe: it owns the memory of the values between operators."""

    def __init__(self, library: Library, traced: Traced, pool: NativePool) -> None:
        self._library = library
        self._traced = traced  # keeps weights and norms alive
        self.pool = pool
        self._places, self._row_floats = assign_places(traced.operators)
        self._layers = [attention_struct(op.layer, pool) for op in traced.operators if op.layer is not None]
        self._operators = self._lower()
        self._arena = torch.empty(0)

    def run(self, batch: NativeBatch) -> torch.Tensor:
        """Logits [R, vocabulary]."""
        needed = self._row_floats * len(batch.tokens)
        if self._arena.numel() < needed:
            self._arena = torch.empty(needed)
        logits = torch.empty(len(batch.logit_rows), self._traced.operators[-1].width)
        step = StepStruct(
            batch=batch.struct,
            tokens=batch.tokens.data_ptr(),
            logit_rows=batch.logit_rows.data_ptr(),
            angles=ctypes.addressof(batch.angles),
            arena=self._arena.data_ptr(),
            logits=logits.data_ptr(),
            logits_wanted=len(logits),
        )
        self._library.run(self._operators, step)
        if self._traced.logit_scale != 1.0:
            logits *= self._traced.logit_scale
        if (cap := self._traced.logit_soft_cap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _lower(self) -> ctypes.Array[OperatorStruct]:
        operators = self._traced.operators
        layers = iter(self._layers)
        structs = (OperatorStruct * len(operators))()
        for struct, op in zip(structs, operators, strict=True):
            struct.kind = op.kind
            struct.x, struct.residual = self._places.get(op.x, 0), self._places.get(op.residual, 0)
            struct.out = self._places[op.out]
            struct.of_logits, struct.width = op.of_logits, op.width
            struct.eps, struct.alpha = op.eps, op.alpha
            struct.norm = None if op.norm is None else op.norm.data_ptr()
            struct.weights = None if op.linear is None else ctypes.addressof(op.linear.struct)
            if op.kind is OperatorKind.NORM_GLU:
                struct.activation = ACTIVATIONS[op.act]
            if op.layer is not None:
                struct.layer = ctypes.addressof(next(layers))
                struct.angles = self.pool.angles_of(op.layer.spec.rope)
        return structs


def assign_places(operators: Sequence[Operator]) -> tuple[dict[int, int], int]:
    """Where each value lies, in floats of a token, and how many a token needs in all. A place is taken again once its
    value has been read for the last time."""
    last_use = {value: i for i, op in enumerate(operators) for value in (op.x, op.residual) if value >= 0}
    places: dict[int, int] = {}
    widths: dict[int, int] = {}
    free: list[tuple[int, int]] = []  # (width, place)
    end = 0
    for i, op in enumerate(operators):
        if i == len(operators) - 1:
            places[op.out] = LOGITS
            continue
        fitting = min((f for f in free if f[0] >= op.width), default=None)
        if fitting is None:
            fitting = (op.width, end)
            end += op.width
        else:
            free.remove(fitting)
        widths[op.out], places[op.out] = fitting
        for value in {op.x, op.residual} - {-1}:
            if last_use[value] == i:
                free.append((widths[value], places[value]))
    return places, end


def attention_struct(layer: AttentionLayer[torch.Tensor], pool: NativePool) -> AttentionStruct:
    spec = layer.spec
    q_norm, k_norm = layer.q_norm, layer.k_norm
    return AttentionStruct(
        key_pages=pool.k_pools[layer.index].data_ptr(),
        value_pages=pool.v_pools[layer.index].data_ptr(),
        query_norm=None if q_norm is None else q_norm.weight.data_ptr(),
        key_norm=None if k_norm is None else k_norm.weight.data_ptr(),
        sinks=None,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        block_size=pool.block_size,
        window=spec.window or 0,
        rotary=0 if spec.rope is None else spec.rope.dims,
        head_norm=HEAD_NORMS[spec.qk_norm],
        scale=spec.scale,
        soft_cap=spec.soft_cap or 0.0,
        norm_eps=0.0 if q_norm is None else q_norm.eps,
    )
