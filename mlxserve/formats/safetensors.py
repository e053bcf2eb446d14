"""Checkpoints in safetensors files: one, or several with an index; dense, or affine-quantised by MLX.

The ``safetensors`` package validates each header; tensors are views of the mapped files, because the package has no
bfloat16 for numpy. Knows the layout of a Hugging Face directory's weights, and no model.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mlxserve.errors import CheckpointError
from mlxserve.formats.jsonfile import read_json
from mlxserve.formats.mlx_quantization import Affine, Quantization
from mlxserve.formats.tensors import (
    AffineTensor,
    DenseDtype,
    DenseTensor,
    HostTensor,
    affine_outline,
    dense_outline,
)
from mlxserve.formats.text_names import is_text, text_name

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 2**25  # bytes; 10^5 tensors take about 2**24
_SHARD = re.compile(r"model.*\.safetensors")  # files that an index has to account for
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
_DENSE: dict[str, tuple[DenseDtype, str]] = {
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where one stored tensor lies."""

    file: Path
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]


class SafetensorsSource:
    """A ``TensorSource`` over a directory. ``config`` is its config.json: there MLX keeps how it quantised.

    Raises CheckpointError at once naming a file or tensor that is missing, in excess, damaged or ambiguous.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self._directory = directory
        self._quantization = Quantization.of(config, directory)
        self._entries = _by_text_name(_stored(directory))
        self._affine = {
            name: self._check_affine(name.removesuffix(".scales")) for name in self._entries if name.endswith(".scales")
        }

    @property
    def quantization(self) -> str:
        default = self._quantization.default
        return f"int{default.bits}" if default and self._affine else "none"

    def names(self) -> Collection[str]:
        parts = {f"{name.removesuffix('.scales')}.biases" for name in self._affine}
        return [name for name in self._entries if name not in self._affine and name not in parts]

    def shape(self, name: str) -> tuple[int, ...]:
        entry, affine = self._entry(name), self._affine_of(name)
        if affine is None:
            return entry.shape
        return (*entry.shape[:-1], entry.shape[-1] * 32 // affine.bits)

    def outline(self, name: str) -> HostTensor:
        entry, affine = self._entry(name), self._affine_of(name)
        if affine is None:
            return dense_outline(entry.shape, _dense_type(entry)[0])
        module = name.removesuffix(".weight")
        scales, biases = (_dense_type(self._entry(f"{module}.{part}"))[0] for part in ("scales", "biases"))
        return affine_outline(self.shape(name), affine.bits, affine.group_size, scales, biases)

    def read(self, name: str) -> HostTensor:
        entry, affine = self._entry(name), self._affine_of(name)
        if affine is None:
            return _dense(entry)
        module = name.removesuffix(".weight")
        return AffineTensor(
            packed=_view(entry, "<u4"),
            scales=_dense(self._entry(f"{module}.scales")),
            biases=_dense(self._entry(f"{module}.biases")),
            bits=affine.bits,
            group_size=affine.group_size,
        )

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise CheckpointError(f"{self._directory}: the tensor {name!r} is missing")
        return self._entries[name]

    def _affine_of(self, name: str) -> Affine | None:
        return self._affine.get(f"{name.removesuffix('.weight')}.scales") if name.endswith(".weight") else None

    def _check_affine(self, module: str) -> Affine:
        """The quantisation of one module, whose three tensors have to agree with it."""
        affine = self._quantization.of_module(module)
        where = f"{self._directory}: the tensor '{module}.weight'"
        if affine is None:
            raise CheckpointError(f"{where} has scales, but config.json does not say how it is quantised")
        if f"{module}.biases" not in self._entries:
            raise CheckpointError(f"{where} has scales but no biases; only affine quantisation is supported")
        weight = self._entry(f"{module}.weight")
        scales, biases = self._entry(f"{module}.scales"), self._entry(f"{module}.biases")
        groups = (*weight.shape[:-1], weight.shape[-1] * 32 // affine.bits // affine.group_size) if weight.shape else ()
        exact = bool(groups) and groups[-1] * affine.group_size * affine.bits == weight.shape[-1] * 32
        if weight.dtype != "U32" or not exact or scales.shape != groups or biases.shape != groups:
            raise CheckpointError(
                f"{where} of {weight.dtype} {weight.shape} with scales {scales.shape} and biases {biases.shape} "
                f"is not {affine.bits}-bit affine in groups of {affine.group_size}"
            )
        return affine


def _by_text_name(stored: Mapping[str, _Entry]) -> dict[str, _Entry]:
    out: dict[str, _Entry] = {}
    for name, entry in stored.items():
        if not is_text(name):
            continue
        plain = text_name(name)
        if plain in out:
            raise CheckpointError(f"{entry.file}: {out[plain].stored_name!r} and {name!r} both stand for {plain!r}")
        out[plain] = entry
    _check_one_layout(out)
    return out


def _check_one_layout(entries: Mapping[str, _Entry]) -> None:
    """A wrapper's prefix on some of the text model's tensors means that they belong to another model than the rest."""
    wrapped = [entry for name, entry in entries.items() if entry.stored_name != name]
    plain = [name for name, entry in entries.items() if entry.stored_name == name and name.startswith("model.")]
    if wrapped and plain:
        raise CheckpointError(
            f"{wrapped[0].file}: {wrapped[0].stored_name!r} is named as a multimodal model's text part, "
            f"but {plain[0]!r} is not"
        )


def _stored(directory: Path) -> dict[str, _Entry]:
    """Every tensor of the directory by its stored name."""
    present = sorted(path.name for path in directory.glob("*.safetensors"))
    if (directory / INDEX).exists():
        return _sharded(directory, [name for name in present if _SHARD.fullmatch(name)])
    if SINGLE in present or len(present) == 1:
        return _read_file(directory / (SINGLE if SINGLE in present else present[0]))
    if present:
        raise CheckpointError(f"{directory} has {len(present)} safetensors files, but no {INDEX}")
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{directory} has its weights only as pickle ({pickles[0]}), which can run code when read; "
            "use a checkpoint in safetensors form"
        )
    raise CheckpointError(f"{directory} has no weights: {SINGLE} or {INDEX} is missing")


def _sharded(directory: Path, present: list[str]) -> dict[str, _Entry]:
    """The shards that the index names, which must agree with it tensor for tensor."""
    index = directory / INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index} is corrupt: it has no weight_map from tensor to file")
    shards = sorted(set(places.values()))
    for shard in shards:
        if shard != Path(shard).name or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index} names {shard!r}, which is not a safetensors file of this directory")
    missing = [shard for shard in shards if not (directory / shard).exists()]
    if missing:
        raise CheckpointError(f"{index} lists files that are missing: {', '.join(missing)}")
    extra = [name for name in present if name not in shards]
    if extra:
        raise CheckpointError(f"{index} does not list files that are there: {', '.join(extra)}")
    out: dict[str, _Entry] = {}
    for shard in shards:
        entries = _read_file(directory / shard)
        listed = {tensor for tensor, place in places.items() if place == shard}
        for tensor in sorted(listed - entries.keys()):
            raise CheckpointError(f"{index} lists the tensor {tensor!r} in {shard}, which does not have it")
        for tensor in sorted(entries.keys() - listed):
            raise CheckpointError(f"{directory / shard} has the tensor {tensor!r}, which {INDEX} does not list there")
        out |= entries
    return out


def _read_file(path: Path) -> dict[str, _Entry]:
    """Validates the header and maps the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(
                    f"{path} is truncated or corrupt: it has {size} bytes, but claims a header of {length}"
                )
            if length > MAX_HEADER:
                raise CheckpointError(f"{path} has a header of {length} bytes, but may have {MAX_HEADER}")
            with safe_open(path, framework="numpy"):  # checks names, types, shapes and offsets against the file
                pass
            header = json.loads(file.read(length))
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is truncated or corrupt: {error}") from error
    header.pop("__metadata__", None)
    out = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        raw = mapped[8 + length + begin : 8 + length + end]
        out[name] = _Entry(path, name, info["dtype"], tuple(info["shape"]), raw)
    return out


def _view(entry: _Entry, stored: str) -> NDArray[Any]:
    view = entry.raw.view(stored).reshape(entry.shape)
    return view if view.flags.aligned else view.copy()


def _dense_type(entry: _Entry) -> tuple[DenseDtype, str]:
    if entry.dtype not in _DENSE:
        raise CheckpointError(
            f"{entry.file}: the tensor {entry.stored_name!r} has the type {entry.dtype}; "
            f"supported are {', '.join(_DENSE)}"
        )
    return _DENSE[entry.dtype]


def _dense(entry: _Entry) -> DenseTensor:
    dtype, stored = _dense_type(entry)
    assert entry.raw.nbytes == math.prod(entry.shape) * np.dtype(stored).itemsize
    return DenseTensor(_view(entry, stored), dtype)
