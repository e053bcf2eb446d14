"""Why the prefix cache missed: what is published under which parent, and what was evicted lately.

Serves ``cache_report`` only; nothing is scheduled or matched by it.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Literal

Reason = Literal["other_token", "evicted", "salt", "never_seen"]


@dataclass(frozen=True, slots=True)
class _Published:
    parent: bytes
    tokens: bytes
    first: bool


class CacheHistory:
    """Remembers the published blocks, and the digests of the last ``remembered`` evicted ones."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._blocks: dict[int, _Published] = {}
        self._children: dict[bytes, set[int]] = {}
        self._first: Counter[bytes] = Counter()  # tokens of first blocks, under any salt
        self._evicted: OrderedDict[bytes, None] = OrderedDict()

    def published(self, block: int, digest: bytes, parent: bytes, tokens: array[int], *, first: bool) -> None:
        entry = _Published(parent, tokens.tobytes(), first)
        self._blocks[block] = entry
        self._children.setdefault(parent, set()).add(block)
        if first:
            self._first[entry.tokens] += 1
        self._evicted.pop(digest, None)

    def forgotten(self, block: int) -> None:
        """The block was unpublished: its content was never meant to be found."""
        entry = self._blocks.pop(block)
        siblings = self._children[entry.parent]
        siblings.discard(block)
        if not siblings:
            del self._children[entry.parent]
        if entry.first:
            self._first[entry.tokens] -= 1
            if not self._first[entry.tokens]:
                del self._first[entry.tokens]

    def evicted(self, block: int, digest: bytes) -> None:
        self.forgotten(block)
        self._evicted[digest] = None
        if len(self._evicted) > self._remembered:
            self._evicted.popitem(last=False)

    def explain(self, root: bytes, parent: bytes | None, digest: bytes, tokens: array[int]) -> tuple[int, Reason]:
        """Why no block has ``digest``: tokens of the block that some cached block shares with it, and the reason.

        ``parent`` is None for a prompt's first block. Looks at every published child of the parent.
        """
        if digest in self._evicted:
            return 0, "evicted"
        if parent is None and tokens.tobytes() in self._first:
            return 0, "salt"
        siblings = self._children.get(root if parent is None else parent, ())
        common = max((_common(tokens, array("i", self._blocks[b].tokens)) for b in siblings), default=None)
        if common is None or (common == 0 and parent is None):
            return 0, "never_seen"
        return common, "other_token"


def _common(a: array[int], b: array[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
