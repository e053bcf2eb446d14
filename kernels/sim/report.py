"""What one launch did, as numbers. Knows nothing of how they were counted."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class BufferCounts:
    """Bytes are those that lanes asked for; ``unique`` counts each byte of the buffer once. ``lines32`` and
    ``lines128``: distinct lines of that many bytes, each counted once a simdgroup that touches it."""

    size: int
    read: int
    written: int
    unique_read: int
    unique_written: int
    lines32: int
    lines128: int

    @property
    def reread(self) -> int:
        """Bytes read again after some lane had read them."""
        return self.read - self.unique_read


@dataclass(frozen=True)
class Report:
    """Operations are counted once a simdgroup that executes them. ``simd_steps`` weighs them: a shuffle of 32 bits is
    one step, a sum or maximum over 32 lanes five. A threadgroup barrier counts once a threadgroup."""

    kernel: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    simd_operations: int
    simd_steps: int
    matrix_operations: int
    simdgroup_barriers: int
    threadgroup_barriers: int
    threadgroups: int
    simdgroups: int
    lanes: int
    threadgroup_memory: int  # bytes, the most that one threadgroup declared
    threadgroup_read: int
    threadgroup_written: int
    nanoseconds: int
    buffers: dict[str, BufferCounts]  # empty without the sanitiser

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)
