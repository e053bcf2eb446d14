"""The C interface of ``kernels/cpu`` as ctypes. The structures mirror weights.h, attention.h and program.h.

Knows pointers and sizes, no model. Nothing here keeps memory alive: whoever makes a structure keeps what it points at.
"""

from __future__ import annotations

import ctypes
import weakref
from enum import IntEnum
from pathlib import Path

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Long = ctypes.c_int64
Float = ctypes.c_float


class Storage(IntEnum):
    INT4 = 0
    INT8 = 1
    FLOAT32 = 2
    BFLOAT16 = 3
    HALF = 4


class OperatorKind(IntEnum):
    EMBEDDING = 0
    SCALE = 1
    TAKE = 2
    NORM_LINEAR = 3
    NORM_GLU = 4
    LINEAR_RESIDUAL = 5
    ATTEND = 6


class HeadNorm(IntEnum):
    NONE = 0
    PER_HEAD = 1
    FULL_WIDTH = 2


class WeightsStruct(ctypes.Structure):
    _fields_ = (
        ("data", Pointer),
        ("bias", Pointer),
        ("tile_bytes", Long),
        ("storage", Int),
        ("wide_scales", Int),
        ("symmetric", Int),
        ("outputs", Int),
        ("inputs", Int),
        ("group", Int),
    )


class AttentionStruct(ctypes.Structure):
    _fields_ = (
        ("key_pages", Pointer),
        ("value_pages", Pointer),
        ("query_norm", Pointer),
        ("key_norm", Pointer),
        ("sinks", Pointer),
        ("heads", Int),
        ("kv_heads", Int),
        ("head_dim", Int),
        ("block_size", Int),
        ("window", Int),
        ("rotary", Int),
        ("head_norm", Int),
        ("scale", Float),
        ("soft_cap", Float),
        ("norm_eps", Float),
    )


class BatchStruct(ctypes.Structure):
    _fields_ = (
        ("positions", Pointer),
        ("slots", Pointer),
        ("query_starts", Pointer),
        ("context_lens", Pointer),
        ("block_tables", Pointer),
        ("tokens", Int),
        ("sequences", Int),
        ("table_width", Int),
    )


class AnglesStruct(ctypes.Structure):
    _fields_ = (("cosine", Pointer), ("sine", Pointer))


class OperatorStruct(ctypes.Structure):
    _fields_ = (
        ("weights", Pointer),
        ("norm", Pointer),
        ("layer", Pointer),
        ("x", Long),
        ("out", Long),
        ("residual", Long),
        ("kind", Int),
        ("of_logits", Int),
        ("width", Int),
        ("angles", Int),
        ("activation", Int),
        ("eps", Float),
        ("alpha", Float),
    )


LOGITS = -1  # the place of the step's logits


class StepStruct(ctypes.Structure):
    _fields_ = (
        ("batch", BatchStruct),
        ("tokens", Pointer),
        ("logit_rows", Pointer),
        ("angles", Pointer),
        ("arena", Pointer),
        ("logits", Pointer),
        ("logits_wanted", Int),
    )


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "mlxserve_open": (Pointer, (ctypes.c_int,)),
    "mlxserve_close": (None, (Pointer,)),
    "mlxserve_weight_bytes": (Long, (Pointer,)),
    "mlxserve_pack_quantized": (None, (Pointer, Pointer, Pointer, ctypes.c_int, Pointer, Pointer)),
    "mlxserve_pack_dense": (None, (Pointer, Pointer, Pointer)),
    "mlxserve_run": (None, (Pointer, Pointer, ctypes.c_int, Pointer)),
}


class Library:
    """The loaded library and one team of threads. One thread at a time may call it."""

    def __init__(self, path: Path, threads: int) -> None:
        self.threads = threads
        self._functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments
        self._team: int = self._functions.mlxserve_open(threads)
        self._finalizer = weakref.finalize(self, self._functions.mlxserve_close, self._team)

    def weight_bytes(self, weights: WeightsStruct) -> int:
        """Bytes that the matrix takes packed; sets ``tile_bytes``."""
        return int(self._functions.mlxserve_weight_bytes(ctypes.byref(weights)))

    def pack_quantized(self, weights: WeightsStruct, words: int, bits: int, scales: int, biases: int) -> None:
        """Addresses of uint32 [N, K * bits / 32] and of floats [N, K / group]."""
        self._functions.mlxserve_pack_quantized(self._team, ctypes.byref(weights), words, bits, scales, biases)

    def pack_dense(self, weights: WeightsStruct, values: int) -> None:
        """Address of [N, K] of the storage's own type."""
        self._functions.mlxserve_pack_dense(self._team, ctypes.byref(weights), values)

    def run(self, operators: ctypes.Array[OperatorStruct], step: StepStruct) -> None:
        self._functions.mlxserve_run(self._team, operators, len(operators), ctypes.byref(step))

    def close(self) -> None:
        """Ends the threads, as the end of the object does. Idempotent."""
        self._finalizer()
