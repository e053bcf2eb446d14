"""THE forward pass, for every family and both backends.

Knows a ModelSpec and Ops; knows no array library, no file format and nothing of scheduling.
"""

from __future__ import annotations

from typing import Generic

from mlxserve.models.blocks import Block, LayerBuilder
from mlxserve.models.ops import A, B, Ops
from mlxserve.models.spec import ModelSpec
from mlxserve.models.weights import WeightReader


class Decoder(Generic[A, B]):
    """Reads its weights when built. A call maps one batch of packed tokens to the logits of the rows it asks for, and
    leaves the tokens' K and V in the batch's pages."""

    def __init__(self, spec: ModelSpec, ops: Ops[A, B], reader: WeightReader[A]) -> None:
        """Raises CheckpointError when a tensor is missing, misshapen or left over."""
        self.spec = spec
        self.ops = ops
        tied = spec.tied and reader.is_same("lm_head", "model.embed_tokens")
        self.embed = reader.embedding("model.embed_tokens", spec.vocab, spec.hidden, head=tied)
        self.blocks: list[Block[A, B]] = []
        for index, layer in enumerate(spec.layers):
            builder = LayerBuilder(spec, ops, reader, f"model.layers.{index}.")
            self.blocks += [builder.attention(index, layer), builder.mlp(layer)]
        self.norm = reader.norm("model.norm", spec.hidden, spec.eps, spec.norm_offset)
        self.head = self.embed if tied else reader.linear(["lm_head"], (spec.vocab,), spec.hidden, bias=False)
        reader.finish()

    def __call__(self, batch: B) -> A:
        """[T] tokens -> [R, vocabulary] logits."""
        x = self.ops.embedding(batch.tokens, self.embed)
        if self.spec.embedding_scale != 1.0:
            x = self.ops.scaled(x, self.spec.embedding_scale)
        for block in self.blocks:
            x = block(x, batch)
        x = self.ops.take(x, batch.logit_rows)
        return self.ops.logits(x, self.norm, self.head, self.spec.logit_scale, self.spec.logit_soft_cap)
