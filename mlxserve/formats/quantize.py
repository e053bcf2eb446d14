"""Quantising a checkpoint as it is read: a ``TensorSource`` over another.

Which tensors, and with how many bits:

- matrices of linear layers, and of experts, get the bits asked for, but the value projection 8: with grouped queries
  it is a few hundredths of a model, and at 4 bits its error costs more of the top-5 than any other kind's;
- the embedding and the head get 8 bits;
- norms, biases and the routers of experts stay as they are.

A tensor that already takes no more bits a weight is passed on unchanged. What a model keeps of itself is measured by
``bench/quantization.py``. Knows names of modules as far as the above goes, and no model.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.affine_search import Floats, quantize
from mlxserve.formats.checkpoint import Checkpoint
from mlxserve.formats.mlx_quantization import Affine
from mlxserve.formats.tensors import AffineTensor, DenseDtype, DenseTensor, HostTensor, TensorSource, affine_outline

PRECISE_BITS = 8
_PRECISE = re.compile(r"(.*\.)?(embed_tokens|lm_head|v_proj)\.weight")
_STACKED = re.compile(r".*\.switch_mlp\..*")  # all experts of a layer in one tensor
_ROUTER = re.compile(r".*\.(gate|router)\.weight")
_LEAST_IMPORTANCE = 1e-3  # of the mean: no input counts for nothing


def quantized(checkpoint: Checkpoint, bits: int, group_size: int) -> Checkpoint:
    """The checkpoint with its weights quantised as they are read. Raises CheckpointError as QuantizedSource."""
    config = checkpoint.config
    kv_heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 1
    return replace(checkpoint, source=QuantizedSource(checkpoint.source, bits, group_size, int(kv_heads)))


def requantised(checkpoint: Checkpoint) -> str | None:
    """One sentence if weights that are quantised already are quantised once more; headers alone are read."""
    source = checkpoint.source
    return source.requantised() if isinstance(source, QuantizedSource) else None


class QuantizedSource:
    """``source``'s tensors, quantised. Raises CheckpointError at once if the group size does not fit a matrix."""

    def __init__(self, source: TensorSource, bits: int, group_size: int, kv_heads: int) -> None:
        self._source = source
        self._wanted = Affine(bits, group_size)
        self._kv_heads = kv_heads
        self._names = frozenset(source.names())
        for name in source.names():
            if self._target(name) is not None and (columns := source.shape(name)[-1]) % group_size:
                raise CheckpointError(
                    f"the group size is {group_size}, but must divide the {columns} columns of {name!r}"
                )

    @property
    def quantization(self) -> str:
        return f"int{self._wanted.bits}"

    def requantised(self) -> str | None:
        for name in self._names:
            tensor = self._source.outline(name)
            if isinstance(tensor, AffineTensor) and self._change(name, tensor) is not None:
                kept = self._source.quantization
                return f"the weights are {kept} already: quantised again as {self.quantization} they lose accuracy"
        return None

    def names(self) -> Collection[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def outline(self, name: str) -> HostTensor:
        tensor = self._source.outline(name)
        target = self._change(name, tensor)
        if target is None:
            return tensor
        dtype = _scale_dtype(tensor)
        return affine_outline(tensor.shape, target.bits, target.group_size, dtype, dtype)

    def read(self, name: str) -> HostTensor:
        tensor = self._source.read(name)
        target = self._change(name, tensor)
        if target is None:
            return tensor
        values = dequantize(tensor)
        if not np.isfinite(values).all():
            raise CheckpointError(f"the tensor {name!r} has values that are not finite")
        importance = None if target.bits >= PRECISE_BITS else self._importance(name)
        return quantize(values, target.bits, target.group_size, _scale_dtype(tensor), importance)

    def _target(self, name: str) -> Affine | None:
        """How the tensor is to be quantised; None: not at all."""
        rank = len(self._source.shape(name))
        is_matrix = rank == 2 or (rank == 3 and _STACKED.fullmatch(name) is not None)
        if not is_matrix or _ROUTER.fullmatch(name) or not name.endswith(".weight"):
            return None
        if _PRECISE.fullmatch(name):
            return replace(self._wanted, bits=max(PRECISE_BITS, self._wanted.bits))
        return self._wanted

    def _change(self, name: str, tensor: HostTensor) -> Affine | None:
        """As ``_target``; None also where the tensor takes no more bits a weight already."""
        target = self._target(name)
        return target if target and _bits_a_weight(tensor) > target.bits + 32 / target.group_size else None

    def _importance(self, name: str) -> Floats | None:
        """How large each input of the module is, squared, as far as the weights tell that make it; None: all alike.

        An output of a linear layer is as large as its row of weights. The input of o_proj is a mean of outputs of
        v_proj, that of down_proj a product of outputs of gate_proj and up_proj; the other modules' are normalised.
        """
        layer, _, module = name.removesuffix(".weight").rpartition(".")
        if module == "down_proj":
            gate, up = self._row_squares(f"{layer}.gate_proj.weight"), self._row_squares(f"{layer}.up_proj.weight")
            found = None if gate is None or up is None else gate * up
        elif module == "o_proj":
            found = self._row_squares(f"{layer}.v_proj.weight")
            if found is not None and found.size % self._kv_heads == 0:
                repeats = self._source.shape(name)[-1] // found.size  # query heads a key-value head
                found = np.repeat(found.reshape(self._kv_heads, -1), max(1, repeats), axis=0).reshape(-1)
        else:
            found = None
        if found is None or found.shape != self._source.shape(name)[-1:] or not found.any():
            return None
        importance: Floats = np.maximum(found / found.mean(), np.float32(_LEAST_IMPORTANCE))
        return importance

    def _row_squares(self, name: str) -> Floats | None:
        if name not in self._names or len(self._source.shape(name)) != 2:
            return None
        rows = dequantize(self._source.read(name))
        squares: Floats = np.einsum("ij,ij->i", rows, rows)
        return squares


def _scale_dtype(tensor: HostTensor) -> DenseDtype:
    dtype = tensor.dtype if isinstance(tensor, DenseTensor) else tensor.scales.dtype
    return "bfloat16" if dtype == "bfloat16" else "float16"


def _bits_a_weight(tensor: HostTensor) -> float:
    if isinstance(tensor, AffineTensor):
        return tensor.bits + 32 / tensor.group_size  # a scale and a bias of 16 bits for each group
    return 8 * tensor.data.itemsize
