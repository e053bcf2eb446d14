"""The operators that a decoder is written in, and the only seam between a model and an array library.

Abstract methods are the primitives of a backend. The fused operators below them are what the blocks call; their
default bodies compose the primitives, and a backend overrides those it can do in one pass. Arrays are packed: T tokens
of all sequences in one row-major [T, ...], never padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mlxserve.formats.tensors import HostTensor
from mlxserve.models.spec import Activation, AttentionSpec

A = TypeVar("A")  # the backend's array


class Linear:
    """A backend's own form of y = x W^T + b, dense or quantised; opaque here."""


class Experts:
    """A backend's own form of the stacked gate, up and down matrices of a mixture of experts; opaque here."""


@dataclass(frozen=True, slots=True)
class Norm(Generic[A]):
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight."""

    weight: A
    eps: float


@dataclass(frozen=True, slots=True)
class AttentionLayer(Generic[A]):
    """One layer's attention: ``index`` is its place among the model's layers and so in the KV pool."""

    index: int
    spec: AttentionSpec
    q_norm: Norm[A] | None = None
    k_norm: Norm[A] | None = None


@dataclass(slots=True)
class DeviceBatch(Generic[A]):
    """One step on the device. Backends extend it with positions, pages and the KV pool."""

    tokens: A  # [T]
    logit_rows: A  # [R] rows whose logits are wanted


B = TypeVar("B", bound=DeviceBatch[Any])


class WeightMaker(ABC, Generic[A]):
    """Turns host tensors into weights, and says beforehand what they take."""

    @abstractmethod
    def weight_bytes(self, tensor: HostTensor) -> int:
        """What the tensor takes in the backend's form."""

    def linear_bytes(self, weights: Sequence[HostTensor]) -> int:
        """The same for the matrices of one ``make_linear``."""
        return sum(self.weight_bytes(tensor) for tensor in weights)

    def embedding_bytes(self, tensor: HostTensor, head: bool) -> int:
        """The same for what ``make_embedding`` makes of it."""
        return self.weight_bytes(tensor)

    @abstractmethod
    def make_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor]) -> Linear:
        """One Linear of the outputs of all the matrices [N_i, K], one after the other; biases [N_i] or none at all."""

    @abstractmethod
    def make_embedding(self, weight: HostTensor, head: bool) -> Linear:
        """From [vocabulary, K]. ``head``: it is multiplied too, as a tied head."""

    @abstractmethod
    def make_vector(self, tensor: HostTensor, offset: float) -> A:
        """tensor + offset, added in float32."""

    @abstractmethod
    def make_experts(self, gate: Sequence[HostTensor], up: Sequence[HostTensor], down: Sequence[HostTensor]) -> Experts:
        """From one matrix an expert: gate and up [I, H], down [H, I]."""


class Ops(WeightMaker[A], Generic[A, B]):
    """Pure functions of arrays, except ``attention``, which also writes the KV pool. One thread calls them."""

    # Primitives

    @abstractmethod
    def embedding(self, ids: A, w: Linear) -> A:
        """[T] -> [T, K]: rows of w."""

    @abstractmethod
    def linear(self, x: A, w: Linear) -> A:
        """[T, K] -> [T, N]"""

    @abstractmethod
    def rms_norm(self, x: A, norm: Norm[A]) -> A:
        """Over the last axis."""

    @abstractmethod
    def rope(self, x: A, layer: AttentionLayer[A], batch: B) -> A:
        """Rotates [T, heads, D] by the layer's RoPE at the batch's positions; angles in float32."""

    @abstractmethod
    def glu(self, gate_up: A, act: Activation) -> A:
        """[T, 2 I] -> [T, I]: act(first half) * second half."""

    @abstractmethod
    def route(self, logits: A, top_k: int, normalise: bool) -> tuple[A, A]:
        """[T, E] -> softmax weights and ids [T, top_k] of the chosen experts, in any order."""

    @abstractmethod
    def experts(self, x: A, weights: A, ids: A, e: Experts, act: Activation) -> A:
        """[T, H] -> [T, H]: the weighted sum of each token's chosen experts."""

    @abstractmethod
    def attention(self, q: A, k: A, v: A, layer: AttentionLayer[A], batch: B) -> A:
        """q [T, heads, D], k and v [T, kv_heads, D] -> [T, heads * D].

        Writes k and v to the batch's slots of the layer's pages, then reads each sequence's pages up to its context
        length. Nothing else touches the pages.
        """

    @abstractmethod
    def split(self, x: A, *sizes: int) -> tuple[A, ...]:
        """Along axis 1."""

    @abstractmethod
    def concat(self, x: A, y: A) -> A:
        """Along axis 1."""

    @abstractmethod
    def heads(self, x: A, n: int) -> A:
        """[T, n * D] -> [T, n, D]"""

    @abstractmethod
    def take(self, x: A, rows: A) -> A:
        """[T, H] -> [R, H]"""

    @abstractmethod
    def scaled(self, x: A, factor: float) -> A: ...

    @abstractmethod
    def add(self, x: A, y: A, alpha: float) -> A:
        """x + alpha * y"""

    @abstractmethod
    def soft_cap(self, x: A, cap: float) -> A:
        """cap * tanh(x / cap)"""

    # Fused operators

    def norm_linear(self, x: A, norm: Norm[A] | None, w: Linear) -> A:
        return self.linear(x if norm is None else self.rms_norm(x, norm), w)

    def attend(self, qkv: A, layer: AttentionLayer[A], batch: B) -> A:
        """q|k|v [T, (heads + 2 kv_heads) D] -> [T, heads * D]: q and k norms, RoPE, page write, attention."""
        s = layer.spec
        qk, v = self.split(qkv, s.q_width + s.kv_width, s.kv_width)
        qk = self.heads(qk, s.heads + s.kv_heads) if s.qk_norm is None else self.qk_norm(qk, layer)
        if s.rope is not None:
            qk = self.rope(qk, layer, batch)
        q, k = self.split(qk, s.heads, s.kv_heads)
        return self.attention(q, k, self.heads(v, s.kv_heads), layer, batch)

    def qk_norm(self, qk: A, layer: AttentionLayer[A]) -> A:
        """q|k [T, (heads + kv_heads) D] -> [T, heads + kv_heads, D], normed."""
        s = layer.spec
        assert layer.q_norm is not None
        assert layer.k_norm is not None
        q, k = self.split(qk, s.q_width, s.kv_width)
        if s.qk_norm == "width":
            q, k = self.rms_norm(q, layer.q_norm), self.rms_norm(k, layer.k_norm)
            return self.concat(self.heads(q, s.heads), self.heads(k, s.kv_heads))
        q, k = self.heads(q, s.heads), self.heads(k, s.kv_heads)
        return self.concat(self.rms_norm(q, layer.q_norm), self.rms_norm(k, layer.k_norm))

    def residual(self, y: A, residual: A, post_norm: Norm[A] | None, alpha: float) -> A:
        """residual + alpha * post_norm(y)"""
        return self.add(residual, y if post_norm is None else self.rms_norm(y, post_norm), alpha)

    def linear_residual(self, x: A, w: Linear, residual: A, post_norm: Norm[A] | None, alpha: float) -> A:
        return self.residual(self.linear(x, w), residual, post_norm, alpha)

    def norm_glu(self, x: A, norm: Norm[A] | None, gate_up: Linear, act: Activation) -> A:
        return self.glu(self.norm_linear(x, norm, gate_up), act)

    def logits(self, x: A, norm: Norm[A], head: Linear, scale: float, soft_cap: float | None) -> A:
        """[R, H] -> [R, vocabulary]"""
        y = self.norm_linear(x, norm, head)
        if scale != 1.0:
            y = self.scaled(y, scale)
        return y if soft_cap is None else self.soft_cap(y, soft_cap)
