"""Reads protocol buffers' wire format: each field is a tag (number and kind) and a value.

A dozen fields of one schema are all that is needed of it, so this takes the place of the ``protobuf`` package. Knows
no schema. Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

Message = dict[int, int | bytes]  # by field number; of a field that repeats, the last

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, every length checked. Raises ValueError or IndexError on what is no message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_BYTES, _FIXED32, _FIXED64):
            length, at = _varint(data, at) if kind == _BYTES else (4 if kind == _FIXED32 else 8, at)
            if length > len(data) - at:
                raise ValueError(f"a field of {length} bytes at byte {at} does not fit")
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"a field at byte {at} has the unknown kind {kind}")
        yield tag >> 3, value


def read_message(value: int | bytes) -> Message:
    """A message inside a field."""
    return dict(read_fields(as_bytes(value)))


def as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field is a number where bytes belong")
    return value


def as_number(value: int | bytes) -> int:
    """Signed: negative numbers take 64 bits on the wire."""
    if isinstance(value, bytes):
        raise ValueError("a field is bytes where a number belongs")
    return value - 2**64 if value >= 2**63 else value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, least first; returns where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"the number before byte {at} is too long")
