"""The decoder's operators in torch, for the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from mlxserve.backends.torch.attention import attend, write_pages
from mlxserve.backends.torch.batch import TorchBatch
from mlxserve.backends.torch.linear import TorchExperts, TorchLinear, linear, make_linear, packs
from mlxserve.backends.torch.tensors import to_torch
from mlxserve.formats.tensors import HostTensor
from mlxserve.models.ops import AttentionLayer, Experts, Linear, Norm, Ops
from mlxserve.models.spec import Activation

Tensor = torch.Tensor

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class TorchOps(Ops[Tensor, TorchBatch]):
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def weight_bytes(self, tensor: HostTensor) -> int:
        return math.prod(tensor.shape) * self.dtype.itemsize

    def embedding_bytes(self, tensor: HostTensor, head: bool) -> int:
        copies = 2 if head and packs(self.dtype) else 1  # rows to look up, and the packed form to multiply
        return copies * self.weight_bytes(tensor)

    def make_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor]) -> Linear:
        return make_linear(self._stack(weights), self._stack(biases) if biases else None)

    def make_embedding(self, weight: HostTensor, head: bool) -> Linear:
        table = to_torch(weight, self.dtype)
        return make_linear(table, None, look_up=True) if head else TorchLinear(table, None, None)

    def make_vector(self, tensor: HostTensor, offset: float) -> Tensor:
        return (to_torch(tensor, torch.float32) + offset).to(self.dtype)

    def make_experts(self, gate: Sequence[HostTensor], up: Sequence[HostTensor], down: Sequence[HostTensor]) -> Experts:
        return TorchExperts(
            tuple(make_linear(self._stack(pair), None) for pair in zip(gate, up, strict=True)),
            tuple(make_linear(self._stack([d]), None) for d in down),
        )

    def _stack(self, parts: Sequence[HostTensor]) -> Tensor:
        tensors = [to_torch(p, self.dtype) for p in parts]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def embedding(self, ids: Tensor, w: Linear) -> Tensor:
        assert isinstance(w, TorchLinear)
        assert w.weight is not None
        return w.weight.index_select(0, ids)

    def linear(self, x: Tensor, w: Linear) -> Tensor:
        assert isinstance(w, TorchLinear)
        return self.product(x, w)

    def product(self, x: Tensor, w: TorchLinear) -> Tensor:
        """Every matrix product with a weight goes through here."""
        return linear(x, w)

    def rms_norm(self, x: Tensor, norm: Norm[Tensor]) -> Tensor:
        return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)

    def rope(self, x: Tensor, layer: AttentionLayer[Tensor], batch: TorchBatch) -> Tensor:
        rotation = batch.rotations[layer.index]
        assert rotation is not None
        dims = rotation.cos.shape[-1]
        part = x[..., :dims]
        rotated = torch.addcmul(part * rotation.cos, part.roll(dims // 2, -1), rotation.sin).to(x.dtype)
        return rotated if dims == x.shape[-1] else torch.cat((rotated, x[..., dims:]), -1)

    def glu(self, gate_up: Tensor, act: Activation) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return ACTIVATIONS[act](gate).mul_(up)

    def route(self, logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        weights, ids = torch.softmax(logits, -1, dtype=torch.float32).topk(top_k, sorted=False)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(logits.dtype), ids

    def experts(self, x: Tensor, weights: Tensor, ids: Tensor, e: Experts, act: Activation) -> Tensor:
        assert isinstance(e, TorchExperts)
        out = torch.zeros_like(x)
        for expert in torch.unique(ids).tolist():
            tokens, place = (ids == expert).nonzero(as_tuple=True)
            h = self.product(self.glu(self.product(x[tokens], e.gate_up[expert]), act), e.down[expert])
            out.index_add_(0, tokens, h * weights[tokens, place, None])
        return out

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: AttentionLayer[Tensor], batch: TorchBatch) -> Tensor:
        k_pool, v_pool = batch.k_pools[layer.index], batch.v_pools[layer.index]
        write_pages(k_pool, batch.writes, k)
        write_pages(v_pool, batch.writes, v)
        return attend(q, k_pool, v_pool, layer.spec, batch.plans[layer.index])

    def split(self, x: Tensor, *sizes: int) -> tuple[Tensor, ...]:
        return torch.split(x, list(sizes), 1)

    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x, y), 1)

    def heads(self, x: Tensor, n: int) -> Tensor:
        return x.view(x.shape[0], n, -1)

    def take(self, x: Tensor, rows: Tensor) -> Tensor:
        return x.index_select(0, rows)

    def scaled(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def add(self, x: Tensor, y: Tensor, alpha: float) -> Tensor:
        return torch.add(x, y, alpha=alpha)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return cap * torch.tanh(x / cap)
