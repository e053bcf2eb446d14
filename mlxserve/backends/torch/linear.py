"""Matrix products in torch: plain, or packed for oneDNN.

A float32 weight packed in oneDNN's blocked layout is multiplied several times as fast on x86 as by torch's default
BLAS, at one row as at 512. The operators are those that torch's own compiler emits; torch is pinned to one version.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mlxserve.models.ops import Experts, Linear


@dataclass(frozen=True, slots=True)
class TorchLinear(Linear):
    """y = x W^T + b with W [N, K] and b [N]. At least one form of W is there: ``weight`` for look-ups and for products
    where there is no packing, ``packed`` for products."""

    weight: torch.Tensor | None
    packed: torch.Tensor | None
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TorchExperts(Experts):
    """One gate|up and one down matrix an expert."""

    gate_up: tuple[TorchLinear, ...]  # [2 I, H]
    down: tuple[TorchLinear, ...]  # [H, I]


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, look_up: bool = False) -> TorchLinear:
    """``look_up``: rows of the weight are read too."""
    if not packs(weight.dtype):
        return TorchLinear(weight, None, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    return TorchLinear(weight if look_up else None, packed, bias)


def linear(x: torch.Tensor, w: TorchLinear) -> torch.Tensor:
    """[T, K] -> [T, N]"""
    if w.packed is None:
        assert w.weight is not None
        return F.linear(x, w.weight, w.bias)
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, w.packed, w.bias, "none", [], "")
    return y


def packs(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()
