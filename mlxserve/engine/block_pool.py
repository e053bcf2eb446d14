"""Blocks: reference counts, the index of published blocks, and the LRU list of those that nobody holds.

Knows block numbers and digests; nothing of tokens, sequences or the arrays behind a block.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat


class BlockPool:
    """Every block is in exactly one state: referenced (refcount > 0), cached (refcount 0, published, matchable until
    taken) or free. The index holds no reference. Not thread-safe.

    ``on_evict`` is told the digest of each cached block that is taken for something else.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes], None] = lambda block, digest: None) -> None:
        self.total = num_blocks
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: low numbers first, so that memory grows with use
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._index: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * num_blocks
        self._on_evict = on_evict

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def index(self) -> Mapping[bytes, int]:
        return self._index

    def refcount(self, block: int) -> int:
        return self._refs[block]

    def take(self, count: int) -> list[int]:
        """``count`` blocks with refcount 1: uncached ones first, then the least recently used cached ones."""
        assert count <= self.available, f"{count} blocks wanted, {self.available} available"
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        digest = self._digests[block]
        assert digest is not None, f"cached block {block} has no digest"
        del self._index[digest]
        self._digests[block] = None
        self._on_evict(block, digest)
        return block

    def share(self, block: int) -> None:
        """Adds a reference to a block that is referenced or cached."""
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops one reference each. Later blocks are reused sooner, so give a sequence's last block first."""
        for block in blocks:
            refs = self._refs[block] - 1
            assert refs >= 0, f"block {block} was released twice"
            self._refs[block] = refs
            if refs == 0:
                if self._digests[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def lookup(self, digest: bytes) -> int | None:
        return self._index.get(digest)

    def publish(self, block: int, digest: bytes) -> bool:
        """Makes a referenced block matchable. False: it is already, or another block has this content."""
        if digest in self._index:
            return False
        assert self._refs[block] > 0, f"block {block} is published by nobody"
        assert self._digests[block] is None, f"block {block} is published twice"
        self._index[digest] = block
        self._digests[block] = digest
        return True

    def unpublish(self, block: int) -> bool:
        """Takes a block out of the index. False: it was not in it."""
        digest = self._digests[block]
        if digest is None:
            return False
        del self._index[digest]
        self._digests[block] = None
        if self._refs[block] == 0:
            del self._cached[block]
            self._free.append(block)
        return True

    def states(self) -> bytes:
        """One byte a block: its refcount (at most 254), 0 when free, 255 when cached."""
        states = bytearray(map(min, self._refs, repeat(254)))
        for block in self._cached:
            states[block] = 255
        return bytes(states)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Raises AssertionError unless counts, lists and index agree with each other and with ``tables``."""
        held = Counter(block for table in tables for block in table)
        for block, refs in enumerate(self._refs):
            assert refs == held[block], f"block {block} has {refs} references, but {held[block]} tables list it"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        assert free | cached == {b for b, refs in enumerate(self._refs) if refs == 0}, "a block is lost"
        assert all(self._digests[b] is None for b in free), "a free block is published"
        assert all(self._digests[b] is not None for b in cached), "a cached block is not published"
        published = {digest: block for block, digest in enumerate(self._digests) if digest is not None}
        assert published == self._index, "the index and the blocks' digests differ"
