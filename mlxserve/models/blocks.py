"""The blocks of a decoder layer: attention, MLP and mixture of experts, over Ops.

Each block adds its own output to the residual stream, so that a backend can fuse the addition. A new mechanism is a
new block class here, never a per-backend model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from mlxserve.models.ops import A, AttentionLayer, B, Experts, Linear, Norm, Ops
from mlxserve.models.spec import Activation, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from mlxserve.models.weights import WeightReader

Block = Callable[[A, B], A]


@dataclass(frozen=True, slots=True)
class Attention(Generic[A, B]):
    ops: Ops[A, B]
    norm: Norm[A] | None
    qkv: Linear
    layer: AttentionLayer[A]
    o: Linear
    post_norm: Norm[A] | None
    alpha: float

    def __call__(self, x: A, batch: B) -> A:
        h = self.ops.attend(self.ops.norm_linear(x, self.norm, self.qkv), self.layer, batch)
        return self.ops.linear_residual(h, self.o, x, self.post_norm, self.alpha)


@dataclass(frozen=True, slots=True)
class Mlp(Generic[A, B]):
    ops: Ops[A, B]
    norm: Norm[A] | None
    gate_up: Linear
    act: Activation
    down: Linear
    post_norm: Norm[A] | None
    alpha: float

    def __call__(self, x: A, batch: B) -> A:
        h = self.ops.norm_glu(x, self.norm, self.gate_up, self.act)
        return self.ops.linear_residual(h, self.down, x, self.post_norm, self.alpha)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts(Generic[A, B]):
    ops: Ops[A, B]
    norm: Norm[A] | None
    router: Linear
    experts: Experts
    spec: MoeSpec
    post_norm: Norm[A] | None
    alpha: float

    def __call__(self, x: A, batch: B) -> A:
        h = x if self.norm is None else self.ops.rms_norm(x, self.norm)
        weights, ids = self.ops.route(self.ops.linear(h, self.router), self.spec.top_k, self.spec.normalise)
        h = self.ops.experts(h, weights, ids, self.experts, self.spec.act)
        return self.ops.residual(h, x, self.post_norm, self.alpha)


@dataclass(frozen=True, slots=True)
class LayerBuilder(Generic[A, B]):
    """Reads one layer's weights into its two blocks. ``prefix`` ends with a dot."""

    spec: ModelSpec
    ops: Ops[A, B]
    reader: WeightReader[A]
    prefix: str

    def norm(self, name: str | None, size: int) -> Norm[A] | None:
        if name is None:
            return None
        return self.reader.norm(f"{self.prefix}{name}", size, self.spec.eps, self.spec.norm_offset)

    def linear(self, names: tuple[str, ...], rows: tuple[int, ...], columns: int, bias: bool) -> Linear:
        """``rows``: the parts' outputs; one name may hold them all."""
        parts = (sum(rows),) if len(names) == 1 else rows
        return self.reader.linear([f"{self.prefix}{n}" for n in names], parts, columns, bias)

    def attention(self, index: int, layer: LayerSpec) -> Attention[A, B]:
        m, names, s = self.spec, self.spec.names, layer.attention
        q_norm = k_norm = None
        if s.qk_norm is not None:
            sizes = (s.head_dim, s.head_dim) if s.qk_norm == "head" else (s.q_width, s.kv_width)
            q_norm, k_norm = self.norm(names.q_norm, sizes[0]), self.norm(names.k_norm, sizes[1])
        return Attention(
            ops=self.ops,
            norm=self.norm(names.attn_norm, m.hidden),
            qkv=self.linear(names.qkv, (s.q_width, s.kv_width, s.kv_width), m.hidden, m.qkv_bias),
            layer=AttentionLayer(index, s, q_norm, k_norm),
            o=self.linear((names.o,), (m.hidden,), s.q_width, m.o_bias),
            post_norm=self.norm(names.attn_post_norm, m.hidden),
            alpha=m.residual_scale,
        )

    def mlp(self, layer: LayerSpec) -> Mlp[A, B] | MixtureOfExperts[A, B]:
        m, names = self.spec, self.spec.names
        norm, post_norm = self.norm(names.mlp_norm, m.hidden), self.norm(names.mlp_post_norm, m.hidden)
        match layer.mlp:
            case MlpSpec(width=width, act=act):
                gate_up = self.linear(names.gate_up, (width, width), m.hidden, m.mlp_bias)
                down = self.linear((names.down,), (m.hidden,), width, m.mlp_bias)
                return Mlp(self.ops, norm, gate_up, act, down, post_norm, m.residual_scale)
            case MoeSpec() as moe:
                router = self.linear((names.router,), (moe.experts,), m.hidden, False)
                experts = self.reader.experts(self.prefix, names, moe, m.hidden)
                return MixtureOfExperts(self.ops, norm, router, experts, moe, post_norm, m.residual_scale)
