"""Operators whose bits depend on a token's own sequence only: tiles of one size everywhere.

A product's bits may depend on how many rows it has, so every product here has TILE rows, the last ones padding. What it
costs: ``bench.deterministic``.
"""

from __future__ import annotations

import torch

from mlxserve.backends.torch.attention_kinds import PagedOps
from mlxserve.backends.torch.linear import TorchLinear, linear
from mlxserve.backends.torch.tiles import TILE, padded


class DeterministicOps(PagedOps):
    def product(self, x: torch.Tensor, w: TorchLinear) -> torch.Tensor:
        return torch.cat([linear(tile, w) for tile in padded(x).split(TILE)])[: x.shape[0]]
