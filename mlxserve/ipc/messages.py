"""What the server and the engine's process say to each other: records, and how they lie on a socket.

A frame is the length of its payload (4 bytes, little-endian) and the payload, a MessagePack array that begins with the
record's tag.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.types import Delta, ModelInfo, Request, Snapshot, Stats

# To the engine's process.


class Configure(msgspec.Struct, tag="configure", array_like=True, frozen=True):
    """The first message: what to load."""

    model: ModelConfig
    engine: EngineConfig


class Add(msgspec.Struct, tag="add", array_like=True, frozen=True):
    request: Request


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    request_id: str
    index: int | None = None
    keep: int | None = None


class AskSnapshot(msgspec.Struct, tag="ask", array_like=True, frozen=True):
    number: int


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True):
    """No more requests will come: end when those in flight have."""


ToEngine = Configure | Add | Abort | AskSnapshot | Shutdown

# From the engine's process.


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The model is loaded; ``plan`` is the startup plan's lines."""

    info: ModelInfo
    plan: list[str]
    stats: Stats


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """Loading failed by the user's doing: the message of a ConfigError or CheckpointError."""

    message: str


class Deltas(msgspec.Struct, tag="deltas", array_like=True, frozen=True):
    """One step's deltas; ``stats`` with the last of a request, and a few times a second."""

    deltas: list[Delta]
    stats: Stats | None = None


class Refused(msgspec.Struct, tag="refused", array_like=True, frozen=True):
    """A request that can never run: the fields of its BadRequest."""

    request_id: str
    message: str
    param: str | None
    code: str | None


class Beat(msgspec.Struct, tag="beat", array_like=True, frozen=True):
    """The engine's loop is alive."""

    stats: Stats


class SnapshotTaken(msgspec.Struct, tag="snapshot", array_like=True, frozen=True):
    number: int
    snapshot: Snapshot


FromEngine = Loading | Ready | Failed | Deltas | Refused | Beat | SnapshotTaken

M = TypeVar("M")
_LENGTH = struct.Struct("<I")
_READ = 1 << 18


class Channel(Generic[M]):
    """One end of a stream socket. ``send`` may be called from any thread, ``receive`` from one.

    Either raises OSError when the other end is gone and the socket says so; ``receive`` simply ends at the end of the
    stream, also in the middle of a frame.
    """

    def __init__(self, sock: socket.socket, incoming: type[M] | object) -> None:
        self._socket = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(incoming)
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        payload = self._encoder.encode(message)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> Iterator[M]:
        buffer = bytearray()
        while data := self._socket.recv(_READ):
            buffer += data
            start = 0
            while len(buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                end = start + _LENGTH.size + length
                if len(buffer) < end:
                    break
                # A copy: a view would forbid the buffer to shrink while an exception holds on to it.
                yield self._decoder.decode(bytes(buffer[start + _LENGTH.size : end]))
                start = end
            del buffer[:start]

    def close(self) -> None:
        """Ends both directions; the other end's ``receive`` ends, and so does ours."""
        with contextlib.suppress(OSError):  # it was closed from the other side
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
