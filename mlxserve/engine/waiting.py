"""The queue of sequences that hold no blocks, and in which order they are admitted.

The order is the whole of a schedule policy; the queue knows nothing of budgets or blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import islice

from mlxserve.config import SchedulePolicy
from mlxserve.engine.sequence import Sequence

AGING_S = 10.0  # waiting that outweighs one step of priority

Order = Callable[[Sequence], float]  # smaller is sooner; must not change while a sequence waits


def _fifo(seq: Sequence) -> float:
    return seq.number


def _priority(seq: Sequence) -> float:
    """Everybody ages alike, so the order of two never changes: priority p is overtaken by what arrives less than
    AGING_S seconds later with priority p - 1, and by nothing that arrives after that."""
    return seq.state.arrival_s + AGING_S * seq.state.request.priority


POLICIES: dict[SchedulePolicy, Order] = {"fifo": _fifo, "priority": _priority}

_Entry = tuple[int, float, int, Sequence]


class WaitingQueue:
    """Sorted; a sequence that had been running before comes before all that had not."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._entries: list[_Entry] = []
        self._keys: dict[Sequence, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, seq: Sequence, *, front: bool = False) -> None:
        """Queues a sequence; ``front``: before all newcomers, in order of arrival among its like."""
        entry = (0, 0.0, seq.number, seq) if front else (1, self._order(seq), seq.number, seq)
        self._keys[seq] = entry
        insort(self._entries, entry)

    def head(self) -> Sequence:
        return self._entries[0][3]

    def remove(self, seq: Sequence) -> bool:
        """False when the sequence is not queued."""
        entry = self._keys.pop(seq, None)
        if entry is None:
            return False
        del self._entries[bisect_left(self._entries, entry)]
        return True

    def first(self, count: int) -> list[Sequence]:
        return [entry[3] for entry in islice(self._entries, count)]
