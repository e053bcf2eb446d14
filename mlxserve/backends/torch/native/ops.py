"""The decoder's operators, written down instead of done.

The decoder runs once, on shapes (tensors of torch's ``meta`` device); each fused operator that it calls becomes an
entry of a list, which ``program.py`` turns into a program for any number of tokens. So there is one forward pass for
every backend, and a step of this one is a single call into C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from mlxserve.backends.torch.native.library import Library, OperatorKind
from mlxserve.backends.torch.native.pool import LOGIT_ROWS, NativeBatch, shapes
from mlxserve.backends.torch.native.weights import Form, NativeLinear, fused_bytes, pack, packed_bytes
from mlxserve.backends.torch.tensors import to_torch
from mlxserve.formats.tensors import HostTensor
from mlxserve.models.ops import AttentionLayer, Linear, Norm, Ops
from mlxserve.models.spec import Activation

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One fused operator. ``x``, ``out`` and ``residual`` number the values; -1: none."""

    kind: OperatorKind
    x: int = -1
    out: int
    residual: int = -1
    width: int  # of a row of out
    of_logits: bool  # rows: the wanted rows of logits, not the tokens
    linear: NativeLinear | None = None
    norm: Tensor | None = None
    eps: float = 0.0
    alpha: float = 1.0
    act: Activation = "silu"
    layer: AttentionLayer[Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """The whole forward pass; the last operator's value are the logits, before scale and soft cap."""

    operators: tuple[Operator, ...]
    logit_scale: float
    logit_soft_cap: float | None


def _not_fused(*args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError("a primitive was called by a model that the C++ operators do not cover")


class NativeOps(Ops[Tensor, NativeBatch]):
    """Values are meta tensors; only those that an operator made, or the batch's, may be used."""

    def __init__(self, library: Library, form: Form) -> None:
        self.library = library
        self.form = form
        self._operators: list[Operator] = []
        self._values: list[Tensor] = []  # keeps them alive, so that an id means one value
        self._tail: tuple[float, float | None] = (1.0, None)

    def trace(self, decoder: Callable[[NativeBatch], Tensor]) -> Traced:
        self._operators, self._values = [], []
        decoder(shapes())
        traced = Traced(tuple(self._operators), *self._tail)
        self._operators, self._values = [], []
        return traced

    # Load time

    def weight_bytes(self, tensor: HostTensor) -> int:
        return packed_bytes(tensor, self.form)

    def linear_bytes(self, weights: Sequence[HostTensor]) -> int:
        return fused_bytes(weights, self.form)

    def make_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor]) -> Linear:
        return pack(self.library, self.form, weights, biases)

    def make_embedding(self, weight: HostTensor, head: bool) -> Linear:
        return pack(self.library, self.form, [weight])

    def make_vector(self, tensor: HostTensor, offset: float) -> Tensor:
        return to_torch(tensor, torch.float32) + offset

    # Primitives that no covered model calls

    make_experts = linear = rms_norm = rope = glu = route = experts = attention = _not_fused
    split = concat = heads = add = soft_cap = _not_fused

    # Operators

    def embedding(self, ids: Tensor, w: Linear) -> Tensor:
        linear = _native(w)
        return self._note(OperatorKind.EMBEDDING, len(ids), linear.inputs, linear=linear)

    def scaled(self, x: Tensor, factor: float) -> Tensor:
        return self._note(OperatorKind.SCALE, len(x), x.shape[1], x=x, alpha=factor)

    def take(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._note(OperatorKind.TAKE, len(rows), x.shape[1], x=x)

    def norm_linear(self, x: Tensor, norm: Norm[Tensor] | None, w: Linear) -> Tensor:
        linear = _native(w)
        return self._note(OperatorKind.NORM_LINEAR, len(x), linear.outputs, x=x, linear=linear, norm=norm)

    def norm_glu(self, x: Tensor, norm: Norm[Tensor] | None, gate_up: Linear, act: Activation) -> Tensor:
        linear = _native(gate_up)
        return self._note(OperatorKind.NORM_GLU, len(x), linear.outputs // 2, x=x, linear=linear, norm=norm, act=act)

    def linear_residual(
        self, x: Tensor, w: Linear, residual: Tensor, post_norm: Norm[Tensor] | None, alpha: float
    ) -> Tensor:
        linear = _native(w)
        return self._note(
            OperatorKind.LINEAR_RESIDUAL,
            len(x),
            linear.outputs,
            x=x,
            residual=residual,
            linear=linear,
            norm=post_norm,
            alpha=alpha,
        )

    def attend(self, qkv: Tensor, layer: AttentionLayer[Tensor], batch: NativeBatch) -> Tensor:
        return self._note(OperatorKind.ATTEND, len(qkv), layer.spec.q_width, x=qkv, layer=layer)

    def logits(self, x: Tensor, norm: Norm[Tensor], head: Linear, scale: float, soft_cap: float | None) -> Tensor:
        self._tail = scale, soft_cap
        return self.norm_linear(x, norm, head)

    def _note(
        self,
        kind: OperatorKind,
        rows: int,
        width: int,
        *,
        x: Tensor | None = None,
        residual: Tensor | None = None,
        norm: Norm[Tensor] | None = None,
        linear: NativeLinear | None = None,
        alpha: float = 1.0,
        act: Activation = "silu",
        layer: AttentionLayer[Tensor] | None = None,
    ) -> Tensor:
        out = torch.empty(rows, width, device="meta")
        self._operators.append(
            Operator(
                kind=kind,
                x=self._number(x),
                out=len(self._values),
                residual=self._number(residual),
                width=width,
                of_logits=rows == LOGIT_ROWS,
                linear=linear,
                norm=None if norm is None else norm.weight,
                eps=0.0 if norm is None else norm.eps,
                alpha=alpha,
                act=act,
                layer=layer,
            )
        )
        self._values.append(out)
        return out

    def _number(self, value: Tensor | None) -> int:
        if value is None:
            return -1
        return next(i for i, known in enumerate(self._values) if known is value)


def _native(w: Linear) -> NativeLinear:
    assert isinstance(w, NativeLinear)
    return w
