"""Sequences to blocks: match a cached prefix, allocate, fork, publish, truncate, free.

Knows token ids and block numbers; nothing of budgets, queues or the arrays behind a block.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from mlxserve.engine.block_pool import BlockPool
from mlxserve.engine.cache_history import CacheHistory
from mlxserve.engine.interfaces import PageCopy
from mlxserve.engine.sequence import Sequence
from mlxserve.types import CacheReport

_NEVER = sys.maxsize


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks that hold the first ``tokens`` tokens of a sequence."""

    blocks: tuple[int, ...] = ()
    tokens: int = 0


class KVManager(Protocol):
    """Owns every block table. Called from the engine's thread only."""

    @property
    def total(self) -> int: ...

    @property
    def available(self) -> int:
        """Blocks that can be allocated: free and cached ones."""
        ...

    @property
    def cached(self) -> int:
        """Blocks that no sequence holds and that can still be matched."""
        ...

    def match(self, seq: Sequence) -> PrefixHit:
        """The longest cached prefix of the sequence's tokens that leaves at least one token to compute. Pure."""
        ...

    def explain(self, seq: Sequence, hit: PrefixHit) -> CacheReport:
        """Why the hit is no longer than it is."""
        ...

    def allocate(self, seq: Sequence, length: int, hit: PrefixHit | None = None, reserve: int = 0) -> bool:
        """Makes room for ``length`` tokens, beginning with the blocks of ``hit`` when the table is empty. False, with
        nothing changed, unless ``reserve`` blocks stay available after that."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> list[PageCopy] | None:
        """Gives the child the parent's context up to ``parent.scheduled``: full blocks are shared, the last, partial
        one is copied by the returned copies, which belong into a step after the parent's. None: nothing changed."""
        ...

    def truncate(self, seq: Sequence, length: int) -> None:
        """Drops the blocks behind ``length`` tokens, and unpublishes what lies past them unless others hold it."""
        ...

    def publish(self, seq: Sequence) -> None:
        """Makes the full blocks among the ``seq.computed`` first tokens matchable, and sets ``seq.publish_at``."""
        ...

    def free(self, seq: Sequence) -> None:
        """Gives all blocks back; published ones stay matchable until they are taken."""
        ...

    def states(self) -> bytes:
        """One byte a block: its refcount (at most 254), 0 when free, 255 when held by nobody but matchable."""
        ...

    def check(self) -> None:
        """Raises AssertionError on a broken invariant."""
        ...


def root_digest(salt: str) -> bytes:
    """Parent of a sequence's first block."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16, person=b"mlxserve salt").digest()


def block_digest(parent: bytes, tokens: bytes) -> bytes:
    """128-bit BLAKE2b over the parent's digest (16 bytes) and the block's tokens (4 bytes each): fixed widths, so no
    two inputs encode alike. A block's digest fixes its tokens, all tokens before it and the salt."""
    return blake2b(parent + tokens, digest_size=16).digest()


class PagedKVManager:
    """Fixed-size blocks, shared by prefix, found by chained hash.

    A block is written by its one holder until it is full; only full blocks are published or shared, so no shared block
    is ever written. ``sharing`` False: a fork finds no place either, and computes its prompt itself.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True, *, sharing: bool = True) -> None:
        assert sharing or not prefix_caching
        self.block_size = block_size
        self._caching = prefix_caching
        self._sharing = sharing
        self._history = CacheHistory(num_blocks)
        self._pool = BlockPool(num_blocks, self._history.evicted)
        self._holders: set[Sequence] = set()

    @property
    def total(self) -> int:
        return self._pool.total

    @property
    def available(self) -> int:
        return self._pool.available

    @property
    def cached(self) -> int:
        return self._pool.cached

    def _hashes(self, seq: Sequence, count: int) -> list[bytes]:
        """Digests of at least the first ``count`` full blocks, computed as far as they are not known yet."""
        hashes = seq.hashes
        if len(hashes) < count:
            parent = hashes[-1] if hashes else root_digest(seq.state.request.salt)
            first = len(hashes)
            width = self.block_size * seq.tokens.itemsize
            data = seq.tokens[first * self.block_size : count * self.block_size].tobytes()
            for offset in range(0, len(data), width):
                parent = block_digest(parent, data[offset : offset + width])
                hashes.append(parent)
        return hashes

    def _may_match(self, seq: Sequence) -> bool:
        return self._caching and seq.params.prompt_logprobs is None

    def match(self, seq: Sequence) -> PrefixHit:
        if not self._may_match(seq):
            return PrefixHit()
        matchable = (len(seq.tokens) - 1) // self.block_size
        lookup = self._pool.lookup
        blocks: list[int] = []
        for digest in self._hashes(seq, matchable)[:matchable]:
            block = lookup(digest)
            if block is None:
                break
            blocks.append(block)
        return PrefixHit(tuple(blocks), len(blocks) * self.block_size)

    def explain(self, seq: Sequence, hit: PrefixHit) -> CacheReport:
        if not self._may_match(seq):
            return CacheReport(0, 0, "disabled")
        matched = len(hit.blocks)
        matchable = (seq.num_prompt - 1) // self.block_size
        if matched >= matchable:
            return CacheReport(hit.tokens, None, "hit")
        hashes = self._hashes(seq, matched + 1)
        parent = hashes[matched - 1] if matched else None
        tokens = seq.tokens[hit.tokens : hit.tokens + self.block_size]
        common, reason = self._history.explain(root_digest(seq.state.request.salt), parent, hashes[matched], tokens)
        return CacheReport(hit.tokens, hit.tokens + common, reason)

    def allocate(self, seq: Sequence, length: int, hit: PrefixHit | None = None, reserve: int = 0) -> bool:
        pool = self._pool
        table = seq.block_table
        shared = hit.blocks if hit is not None else ()
        assert not (shared and table), "a prefix was matched for a sequence that holds blocks"
        missing = -(-length // self.block_size) - len(table) - len(shared)
        revived = sum(1 for block in shared if pool.refcount(block) == 0)
        if missing + revived + reserve > pool.available:
            return False
        for block in shared:
            pool.share(block)
        table.extend(shared)
        if missing > 0:
            table.extend(pool.take(missing))
        if shared:
            seq.published = len(shared)
        seq.capacity = len(table) * self.block_size
        self._holders.add(seq)
        return True

    def fork(self, parent: Sequence, child: Sequence) -> list[PageCopy] | None:
        if not self._sharing:
            return None
        full, partial = divmod(parent.scheduled, self.block_size)
        pool = self._pool
        if partial and not pool.available:
            return None
        shared = parent.block_table[:full]
        for block in shared:
            pool.share(block)
        child.block_table.extend(shared)
        copies = []
        if partial:
            (target,) = pool.take(1)
            child.block_table.append(target)
            copies.append(PageCopy(parent.block_table[full], target))
        child.hashes = parent.hashes[:full]
        child.published = min(parent.published, full)
        child.publish_at = 0
        child.capacity = len(child.block_table) * self.block_size
        self._holders.add(child)
        return copies

    def publish(self, seq: Sequence) -> None:
        if not self._caching:
            seq.publish_at = _NEVER
            return
        size = self.block_size
        full = seq.computed // size
        hashes = self._hashes(seq, full)
        for i in range(seq.published, full):
            block = seq.block_table[i]
            if self._pool.publish(block, hashes[i]):
                tokens = seq.tokens[i * size : (i + 1) * size]
                parent = hashes[i - 1] if i else root_digest(seq.state.request.salt)
                self._history.published(block, hashes[i], parent, tokens, first=i == 0)
        seq.published = full
        seq.publish_at = (full + 1) * size

    def truncate(self, seq: Sequence, length: int) -> None:
        table = seq.block_table
        size = self.block_size
        for block in table[length // size :]:
            if self._pool.refcount(block) == 1 and self._pool.unpublish(block):
                self._history.forgotten(block)
        keep = -(-length // size)
        self._pool.release(reversed(table[keep:]))
        del table[keep:]
        del seq.hashes[length // size :]
        seq.published = min(seq.published, length // size)
        seq.publish_at = 0
        seq.capacity = len(table) * size

    def free(self, seq: Sequence) -> None:
        self._pool.release(reversed(seq.block_table))
        del seq.block_table[:]
        seq.capacity = seq.published = seq.publish_at = 0
        self._holders.discard(seq)

    def states(self) -> bytes:
        return self._pool.states()

    def index(self) -> Mapping[bytes, int]:
        """The blocks that can be matched, by digest."""
        return self._pool.index

    def check(self) -> None:
        pool, size = self._pool, self.block_size
        pool.check(s.block_table for s in self._holders)
        used = pool.total - pool.free
        assert used == pool.cached + len({b for s in self._holders for b in s.block_table}), "blocks do not add up"
        assert self._caching or not pool.cached, "a block is cached although the cache is off"
        for seq in self._holders:
            assert seq.capacity == len(seq.block_table) * size >= seq.scheduled, f"{seq.request_id} lacks blocks"
            assert seq.published * size <= seq.computed <= seq.scheduled, f"{seq.request_id} is ahead of itself"
            for block in seq.block_table[seq.scheduled // size :]:
                assert pool.refcount(block) == 1, f"block {block} is shared and will be written"
