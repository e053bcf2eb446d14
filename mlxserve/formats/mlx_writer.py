"""Writing tensors in MLX's form: safetensors files with their index, quantised weights as three tensors each.

The ``safetensors`` package takes no bfloat16 from numpy; the format is a header in JSON and the bytes. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxserve.formats.safetensors import INDEX, SINGLE
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor

SHARD_BYTES = 2**32
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(slots=True)
class _Shard:
    tensors: dict[str, tuple[str, NDArray[np.generic]]] = field(default_factory=dict)  # name: safetensors type, data
    nbytes: int = 0


def write_tensors(directory: Path, tensors: Iterable[tuple[str, HostTensor]], shard_bytes: int = SHARD_BYTES) -> None:
    """One file, or several of at most ``shard_bytes`` (a larger tensor has one of its own) with an index.

    One shard is held in memory at a time.
    """
    shard, written = _Shard(), list[tuple[Path, list[str], int]]()
    for name, tensor in tensors:
        parts = _parts(name, tensor)
        size = sum(data.nbytes for _, data in parts.values())
        if shard.tensors and shard.nbytes + size > shard_bytes:
            written.append(_write(directory / f"part-{len(written)}", shard))
            shard = _Shard()
        shard.tensors |= parts
        shard.nbytes += size
    written.append(_write(directory / f"part-{len(written)}", shard))
    places: dict[str, str] = {}
    for number, (path, names, _) in enumerate(written, start=1):
        final = SINGLE if len(written) == 1 else f"model-{number:05d}-of-{len(written):05d}.safetensors"
        path.rename(directory / final)
        places |= dict.fromkeys(names, final)
    total = sum(size for _, _, size in written)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=1))


def _parts(name: str, tensor: HostTensor) -> dict[str, tuple[str, NDArray[np.generic]]]:
    if isinstance(tensor, DenseTensor):
        return {name: (_NAMES[tensor.dtype], tensor.data)}
    assert isinstance(tensor, AffineTensor)
    module = name.removesuffix(".weight")
    return {
        name: ("U32", tensor.packed),
        f"{module}.scales": (_NAMES[tensor.scales.dtype], tensor.scales.data),
        f"{module}.biases": (_NAMES[tensor.biases.dtype], tensor.biases.data),
    }


def _write(path: Path, shard: _Shard) -> tuple[Path, list[str], int]:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    # The widest types first: every tensor is then aligned to its own type.
    order = sorted(shard.tensors.items(), key=lambda item: -item[1][1].itemsize)
    for name, (kind, data) in order:
        header[name] = {"dtype": kind, "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (_, data) in order:
            file.write(np.ascontiguousarray(data).data)
    return path, list(shard.tensors), offset
