import pytest

from mlxserve.engine.block_pool import BlockPool


def digest(i: int) -> bytes:
    return i.to_bytes(16, "little")


def cached_pool(count: int = 3, total: int = 4) -> tuple[BlockPool, list[int]]:
    """A pool with ``count`` cached blocks, the first of them least recently used."""
    pool = BlockPool(total)
    blocks = pool.take(count)
    for i, block in enumerate(blocks):
        assert pool.publish(block, digest(i))
        pool.release([block])
    return pool, blocks


def test_low_blocks_are_used_first_so_that_memory_grows_with_use():
    pool = BlockPool(100)
    assert pool.take(3) == [0, 1, 2]
    pool.release([1])
    assert pool.take(2) == [1, 3]


def test_uncached_blocks_are_taken_before_cached_ones_and_those_in_lru_order():
    pool, (a, b, c) = cached_pool()
    pool.share(a)  # used again: now the most recent
    pool.release([a])
    assert pool.take(1) == [3]
    assert pool.take(3) == [b, c, a]
    assert pool.lookup(digest(0)) is None


def test_a_cached_block_stays_matchable_until_it_is_taken():
    evicted = []
    pool = BlockPool(1, lambda block, digest: evicted.append((block, digest)))
    (block,) = pool.take(1)
    pool.publish(block, digest(5))
    pool.release([block])
    assert pool.lookup(digest(5)) == block
    assert (pool.available, pool.cached, pool.free) == (1, 1, 0)
    pool.take(1)
    assert pool.lookup(digest(5)) is None
    assert evicted == [(block, digest(5))]


def test_a_shared_block_is_freed_by_its_last_holder():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.share(block)
    pool.release([block])
    assert pool.refcount(block) == 1
    assert pool.free == 1
    pool.release([block])
    assert pool.free == 2


def test_content_is_published_once():
    pool = BlockPool(2)
    a, b = pool.take(2)
    assert pool.publish(a, digest(1))
    assert not pool.publish(a, digest(1))
    assert not pool.publish(b, digest(1))
    pool.release([a, b])
    assert (pool.cached, pool.free) == (1, 1)


@pytest.mark.parametrize("held", [True, False])
def test_unpublish(held):
    pool = BlockPool(1)
    (block,) = pool.take(1)
    pool.publish(block, digest(1))
    if not held:
        pool.release([block])
    assert pool.unpublish(block)
    assert not pool.unpublish(block)
    assert pool.lookup(digest(1)) is None
    assert (pool.cached, pool.free) == (0, 0 if held else 1)
    pool.check([[block]] if held else [])


def test_states():
    pool, (a, b, _) = cached_pool()
    pool.share(a)
    pool.share(a)
    assert list(pool.states()) == [2 if i == a else 255 if i in (b, 2) else 0 for i in range(4)]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool: pool.release([0, 0]),
        lambda pool: pool.take(2),
        lambda pool: pool.publish(1, digest(1)),
    ],
)
def test_misuse_is_our_bug(misuse):
    pool = BlockPool(2)
    pool.take(1)
    with pytest.raises(AssertionError):
        misuse(pool)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda pool: pool._refs.__setitem__(0, 2),
        lambda pool: pool._free.append(pool._free[0]),
        lambda pool: pool._free.pop(),
        lambda pool: pool._index.clear(),
        lambda pool: pool._cached.__setitem__(pool._free[0], None),
    ],
)
def test_check_sees_corruption(corrupt):
    pool, (a, _, _) = cached_pool(total=6)
    pool.share(a)
    pool.check([[a]])
    corrupt(pool)
    with pytest.raises(AssertionError):
        pool.check([[a]])
