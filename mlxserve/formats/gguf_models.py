"""The tensors of a GGUF file under their Hugging Face names, as Hugging Face's checkpoint has them.

Knows the header and the blocks of a file, and what the converter did to an architecture's tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.gguf import GGUFFile
from mlxserve.formats.gguf_architectures import Architecture
from mlxserve.formats.gguf_blocks import EXPANDED, check_type, decode, outline
from mlxserve.formats.gguf_config import architecture
from mlxserve.formats.gguf_rope import FACTORS
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor, dense_outline


@dataclass(frozen=True, slots=True)
class _Entry:
    gguf_name: str
    heads: int | None = None  # number of heads whose rows are to be un-permuted
    offset: float = 0.0  # to be taken off again


class GGUFSource:
    """A ``TensorSource`` over a GGUF file. Raises CheckpointError at once for a tensor it could not read."""

    def __init__(self, file: GGUFFile, config: Mapping[str, Any]) -> None:
        self._file = file
        self._entries = _entries(file, architecture(file), config)
        weights: Counter[GGMLQuantizationType] = Counter()
        for entry in self._entries.values():
            info = file.tensors[entry.gguf_name]
            check_type(info)
            if len(info.shape) > 1:
                weights[info.type] += info.nbytes
        self._kinds = weights

    @property
    def quantization(self) -> str:
        """The type of most bytes, and which others take more memory than in the file: "q4_k, q6_k as float"."""
        kinds = [kind for kind, _ in self._kinds.most_common() if kind.name.startswith("Q")]
        packed = [kind for kind in kinds if kind not in EXPANDED][:1]
        words = [kind.name.lower() for kind in packed]
        words += [f"{kind.name.lower()} as float" for kind in kinds if kind in EXPANDED]
        return ", ".join(words) or "none"

    def names(self) -> Collection[str]:
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._entry(name).gguf_name].shape

    def outline(self, name: str) -> HostTensor:
        entry = self._entry(name)
        info = self._file.tensors[entry.gguf_name]
        return dense_outline(info.shape, "float32") if entry.offset else outline(info)

    def read(self, name: str) -> HostTensor:
        entry = self._entry(name)
        info = self._file.tensors[entry.gguf_name]
        try:
            tensor = decode(self._file.raw(info), info)
        except CheckpointError as error:
            raise CheckpointError(f"{self._file.path}: {error.message}") from error
        if entry.offset:
            return DenseTensor(dequantize(tensor) - np.float32(entry.offset), "float32")
        return tensor if entry.heads is None else _take_rows(tensor, _unpermuted(info.shape[0], entry.heads))

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise CheckpointError(f"{self._file.path}: the tensor {name!r} is missing")
        return self._entries[name]


def _entries(file: GGUFFile, row: Architecture, config: Mapping[str, Any]) -> dict[str, _Entry]:
    """Every tensor of the file by its Hugging Face name; one without a counterpart keeps its own."""
    out = {}
    for name, info in file.tensors.items():
        if name in FACTORS:
            continue
        stem, _, kind = name.rpartition(".")
        heads = None
        if stem.startswith("blk.") and stem.count(".") == 2:
            _, layer, part = stem.split(".")
            target = f"model.layers.{layer}.{row.inner[part]}" if part in row.inner else stem
            if part in row.permuted:
                heads = int(config[row.permuted[part]])
                if info.shape[0] % (2 * heads):
                    raise CheckpointError(
                        f"{file.path}: the tensor {name!r} has {info.shape[0]} rows, "
                        f"which do not divide into {heads} heads of even width"
                    )
        else:
            target = row.outer.get(stem, stem)
        if f"{target}.{kind}" in out:
            raise CheckpointError(f"{file.path}: two tensors stand for {target}.{kind}, one of them {name!r}")
        is_norm = stem.endswith("norm") and kind == "weight"
        out[f"{target}.{kind}"] = _Entry(name, heads, row.norm_offset if is_norm else 0.0)
    return out


def _unpermuted(rows: int, heads: int) -> NDArray[np.intp]:
    """Where each row in Hugging Face's order lies in a file whose heads interleave the two halves of RoPE."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _take_rows(tensor: HostTensor, rows: NDArray[np.intp]) -> HostTensor:
    if isinstance(tensor, DenseTensor):
        return replace(tensor, data=tensor.data[rows])
    assert isinstance(tensor, AffineTensor)
    return replace(
        tensor,
        packed=tensor.packed[rows],
        scales=replace(tensor.scales, data=tensor.scales.data[rows]),
        biases=replace(tensor.biases, data=tensor.biases.data[rows]),
    )
