"""GGUF version 2 and 3 files: the header, and where each tensor's bytes lie.

The header is read here and not by the ``gguf`` package, whose reader trusts every count and takes seconds; its tables
of types and block sizes are used. Every length is checked against the file before anything is allocated, so a crafted
file costs a bounded time and memory. Knows no architecture and decodes no tensor.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError

Value = bool | int | float | str | tuple[str, ...] | NDArray[np.generic]

MAX_HEADER = 2**27  # bytes; a vocabulary of 256k tokens with its merges takes about 2**24
MAX_STRINGS = 2**22  # in all arrays together: each costs an object whatever its length
MAX_KEYS = 2**16
MAX_TENSORS = 2**17
MAX_KEY_LENGTH = 2**16 - 1  # the format's own
MAX_DIMS = 4  # ggml's own
MAX_ALIGNMENT = 2**16

_SCALARS: dict[GGUFValueType, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_U32 = _SCALARS[GGUFValueType.UINT32]
_U64 = _SCALARS[GGUFValueType.UINT64]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """``shape`` is row-major, outermost first; ``start`` counts bytes from the beginning of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A header that has been checked, over the mapped file. Numeric arrays are views of the mapping."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    data: NDArray[np.uint8]

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """The tensor's bytes: a read-only view."""
        return self.data[info.start : info.start + info.nbytes]

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._mistyped(key, "an integer")

    def number(self, key: str) -> float | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._mistyped(key, "a number")

    def boolean(self, key: str) -> bool | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._mistyped(key, "true or false")

    def string(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._mistyped(key, "a string")

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, tuple):
            return value
        raise self._mistyped(key, "an array of strings")

    def numbers(self, key: str) -> NDArray[np.generic] | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise self._mistyped(key, "an array of numbers")

    def positive_integer(self, key: str, default: int | None = None) -> int:
        """Raises CheckpointError when the key is missing and has no default, or is below 1."""
        value = self.integer(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise CheckpointError(f"{self.path}: the GGUF metadata lacks {key}")
        if value < 1:
            raise CheckpointError(f"{self.path}: {key} is {value}, but must be at least 1")
        return value

    def _mistyped(self, key: str, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: the GGUF key {key} is not {wanted}")


def read_gguf(path: Path) -> GGUFFile:
    """Maps the file and reads its header. Raises CheckpointError naming what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise CheckpointError(f"{path}: not a GGUF file: it has only {size} bytes")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return _Header(path, mapped).read()


class _Header:
    """A cursor over the mapped file that never reads, and never promises to read, past ``end``."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self.buffer = mapped
        self.position = 0
        self.end = min(len(mapped), MAX_HEADER)
        self.strings_left = MAX_STRINGS

    def read(self) -> GGUFFile:
        if self.buffer[:4] != b"GGUF":
            self.fail("not a GGUF file: it does not begin with 'GGUF'")
        self.position = 4
        version = self.unsigned(_U32)
        if version & 0xFFFF == 0 and version:
            self.fail("it is a big-endian GGUF file; only little-endian ones are supported")
        if version not in (2, 3):
            self.fail(f"its GGUF version is {version}; 2 and 3 are supported")
        tensor_count = self.count("tensors", MAX_TENSORS, least_bytes=24)
        key_count = self.count("metadata keys", MAX_KEYS, least_bytes=13)
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self.string("a metadata key", MAX_KEY_LENGTH)
            if key in metadata:
                self.fail(f"the metadata key {key!r} appears twice")
            metadata[key] = self.value(key)
        entries = [self.tensor_entry() for _ in range(tensor_count)]
        tensors = self.place(entries, self.alignment(metadata))
        data = np.frombuffer(self.buffer, dtype=np.uint8)
        return GGUFFile(self.path, metadata, tensors, data)

    def fail(self, reason: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {reason}")

    def take(self, length: int, what: str) -> int:
        """Moves past ``length`` bytes; returns where they start."""
        start = self.position
        if length > self.end - start:
            if self.end < len(self.buffer):
                self.fail(f"its header would be larger than {MAX_HEADER} bytes, at {what} of {length} bytes")
            self.fail(f"truncated or corrupt: {what} of {length} bytes at byte {start} does not fit the file")
        self.position = start + length
        return start

    def scalar(self, form: struct.Struct) -> bool | int | float:
        value: bool | int | float = form.unpack_from(self.buffer, self.take(form.size, "a number"))[0]
        return value

    def unsigned(self, form: struct.Struct) -> int:
        return int(self.scalar(form))

    def count(self, what: str, limit: int, least_bytes: int) -> int:
        value = self.unsigned(_U64)
        if value > limit or value * least_bytes > self.end - self.position:
            self.fail(f"truncated or corrupt: it claims {value} {what}, more than fit the file or the limit of {limit}")
        return value

    def string(self, what: str, limit: int = MAX_HEADER) -> str:
        length = self.unsigned(_U64)
        if length > limit:
            self.fail(f"truncated or corrupt: {what} is {length} bytes long, but may have {limit}")
        start = self.take(length, what)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} at byte {start} is not UTF-8")

    def value_type(self, key: str) -> GGUFValueType:
        code = self.unsigned(_U32)
        try:
            return GGUFValueType(code)
        except ValueError:
            self.fail(f"the metadata key {key!r} has the unknown type {code}")

    def value(self, key: str) -> Value:
        kind = self.value_type(key)
        if kind is GGUFValueType.STRING:
            return self.string(f"the metadata key {key!r}")
        if kind is not GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[kind])
        element = self.value_type(key)
        if element is GGUFValueType.ARRAY:
            self.fail(f"the metadata key {key!r} is an array of arrays, which is not supported")
        length = self.unsigned(_U64)
        if element is GGUFValueType.STRING:
            return self.string_array(key, length)
        form = _SCALARS[element]
        start = self.take(length * form.size, f"the array {key!r}")
        return np.frombuffer(self.buffer, dtype=np.dtype(form.format), count=length, offset=start)

    def string_array(self, key: str, length: int) -> tuple[str, ...]:
        """As ``string`` for each, without a call an element: vocabularies have 10^5 and more."""
        if length > self.strings_left or length * 8 > self.end - self.position:
            self.fail(
                f"truncated or corrupt: the array {key!r} claims {length} strings, more than fit the file "
                f"or the limit of {MAX_STRINGS}"
            )
        self.strings_left -= length
        buffer, position, end, unpack = self.buffer, self.position, self.end, _U64.unpack_from
        out = []
        for index in range(length):
            if position + 8 > end or (stop := position + 8 + unpack(buffer, position)[0]) > end:
                self.fail(f"truncated or corrupt: string {index} of the array {key!r} does not fit the file")
            out.append(buffer[position + 8 : stop])
            position = stop
        self.position = position
        try:
            return tuple([item.decode() for item in out])
        except UnicodeDecodeError:
            self.fail(f"the array {key!r} holds a string that is not UTF-8")

    def alignment(self, metadata: dict[str, Value]) -> int:
        value = metadata.get("general.alignment", 32)
        if not isinstance(value, int) or value & (value - 1) or not 8 <= value <= MAX_ALIGNMENT:
            self.fail(f"general.alignment is {value}, but must be a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def tensor_entry(self) -> TensorInfo:
        """``start`` is still relative to the data section."""
        name = self.string("a tensor name", MAX_KEY_LENGTH)
        dims = self.unsigned(_U32)
        if not 1 <= dims <= MAX_DIMS:
            self.fail(f"the tensor {name!r} has {dims} dimensions, but must have from 1 to {MAX_DIMS}")
        shape = tuple([self.unsigned(_U64) for _ in range(dims)][::-1])
        code, offset = self.unsigned(_U32), self.unsigned(_U64)
        if code not in GGML_QUANT_SIZES:
            self.fail(f"the tensor {name!r} has the unknown type {code}")
        kind = GGMLQuantizationType(code)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % block:
            self.fail(f"the tensor {name!r} has shape {shape}: rows of {kind.name} are multiples of {block}")
        return TensorInfo(name, shape, kind, offset, math.prod(shape) // block * block_bytes)

    def place(self, entries: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        """Checks that each tensor lies in the file, aligned, and that no two overlap."""
        section = (self.position + alignment - 1) // alignment * alignment
        size = len(self.buffer)
        tensors: dict[str, TensorInfo] = {}
        free_from, previous = section, ""
        for entry in sorted(entries, key=lambda e: e.start):
            start = section + entry.start
            if entry.name in tensors:
                self.fail(f"the tensor {entry.name!r} appears twice")
            if entry.start % alignment:
                self.fail(f"the tensor {entry.name!r} is at offset {entry.start}, not a multiple of {alignment}")
            if start + entry.nbytes > size:
                self.fail(
                    f"truncated or corrupt: the tensor {entry.name!r} of {entry.nbytes} bytes "
                    f"ends at byte {start + entry.nbytes}, but the file has {size}"
                )
            if start < free_from:
                self.fail(f"corrupt: the tensors {previous!r} and {entry.name!r} overlap")
            tensors[entry.name] = TensorInfo(entry.name, entry.shape, entry.type, start, entry.nbytes)
            free_from, previous = start + entry.nbytes, entry.name
        return tensors
