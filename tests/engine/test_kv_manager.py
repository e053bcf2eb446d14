import time

import pytest

from mlxserve.engine.interfaces import PageCopy
from mlxserve.engine.kv_manager import PagedKVManager, PrefixHit, block_digest, root_digest
from tests.engine.support import compute, sequence


def words(*tokens: int) -> bytes:
    return b"".join(t.to_bytes(4, "little") for t in tokens)


class TestDigest:
    """PFX-05: a digest fixes the block's tokens, everything before them and the salt."""

    def test_changes_with_every_input(self):
        root = root_digest("")
        digests = {
            block_digest(root, words(1, 23)),
            block_digest(root, words(12, 3)),
            block_digest(root, words(123)),
            block_digest(root, words(1, 256)),
            block_digest(root, words(257, 0)),
            block_digest(root_digest("tenant"), words(1, 23)),
            block_digest(block_digest(root, words(1, 23)), words(1, 23)),  # the same block at another position
            block_digest(b"\0" * 16, words(1, 23)),
            root,
            root_digest("\ud800"),
        }
        assert len(digests) == 10
        assert {len(d) for d in digests} == {16}

    def test_is_the_same_in_every_process(self):
        assert block_digest(root_digest(""), words(1, 2)).hex() == "0735a53c71dfcc0ba3d9585950224813"

    def test_manager_chains_them(self):
        kv = PagedKVManager(8, 2)
        compute(kv, sequence((1, 2, 3, 4, 5), salt="a"))
        first = block_digest(root_digest("a"), words(1, 2))
        assert set(kv.index()) == {first, block_digest(first, words(3, 4))}


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_at_least_one_token_is_left_to_compute(length):
    """PFX-01, the KV manager's side."""
    kv = PagedKVManager(64, 16)
    first, second = sequence(length), sequence(length)
    assert compute(kv, first) == 0
    cached = compute(kv, second)
    assert cached == (length - 1) // 16 * 16 < length
    assert (cached > 0) == (length > 16)


def test_a_match_ends_at_the_first_difference():
    kv = PagedKVManager(64, 4)
    compute(kv, sequence((1, 2, 3, 4, 5, 6, 7, 8, 9)))
    assert kv.match(sequence((1, 2, 3, 4, 5, 6, 7, 8, 9))).tokens == 8
    assert kv.match(sequence((1, 2, 3, 4, 5, 6, 7, 0, 9))).tokens == 4
    assert kv.match(sequence((1, 2, 0, 4, 5, 6, 7, 8, 9))).tokens == 0
    assert kv.match(sequence((5, 6, 7, 8, 9))).tokens == 0
    assert kv.match(sequence((1, 2, 3, 4, 5, 6), salt="other")).tokens == 0


def test_matching_changes_nothing():
    kv = PagedKVManager(8, 4)
    first = sequence(9)
    compute(kv, first)
    kv.free(first)
    before = kv.states()
    kv.match(sequence(9))
    assert kv.states() == before


@pytest.mark.parametrize("caching", [True, False])
def test_prompt_logprobs_and_no_caching_match_nothing(caching):
    kv = PagedKVManager(64, 4, caching)
    compute(kv, sequence(9))
    seq = sequence(9, prompt_logprobs=1 if caching else None)
    assert kv.match(seq) == PrefixHit()
    assert kv.explain(seq, PrefixHit()).reason == "disabled"


def test_without_caching_nothing_stays():
    kv = PagedKVManager(8, 4, prefix_caching=False)
    seq = sequence(20)
    compute(kv, seq)
    kv.free(seq)
    assert (kv.available, kv.cached) == (8, 0)


def test_no_fragmentation():
    """Sequences of all lengths take exactly the blocks that their tokens need, in whatever order others come and go."""
    kv = PagedKVManager(600, 16)
    lengths = [1 + 511 * i // 31 for i in range(32)]
    seqs = [sequence(tuple(range(i, i + n)), limit=513) for i, n in enumerate(lengths)]
    for seq in seqs:
        compute(kv, seq)
    assert kv.total - kv.available == sum(-(-n // 16) for n in lengths)
    for seq in seqs[::2]:
        kv.free(seq)
    big = sequence(tuple(range(900, 900 + kv.available * 16)))
    assert kv.allocate(big, len(big.tokens))
    assert kv.available == 0


class TestAllocate:
    def test_all_or_nothing(self):
        kv = PagedKVManager(4, 4)
        seq = sequence(17)
        assert not kv.allocate(seq, 17)
        assert (len(seq.block_table), seq.capacity, kv.available) == (0, 0, 4)
        assert kv.allocate(seq, 16)
        assert (len(seq.block_table), seq.capacity, kv.available) == (4, 16, 0)
        assert kv.allocate(seq, 16)
        assert not kv.allocate(seq, 17)

    def test_reserve(self):
        kv = PagedKVManager(4, 4)
        assert not kv.allocate(sequence(9), 9, reserve=2)
        assert kv.allocate(sequence(9), 9, reserve=1)

    def test_cached_blocks_that_are_matched_are_not_available_any_more(self):
        kv = PagedKVManager(3, 4)
        first = sequence(12)
        compute(kv, first)
        kv.free(first)
        assert kv.available == 3
        again = sequence((*first.tokens, 1))  # 3 cached blocks and a fourth that is not there
        hit = kv.match(again)
        assert hit.tokens == 12
        before = kv.states()
        assert not kv.allocate(again, 13, hit)
        assert kv.states() == before


class TestFork:
    @pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
    def test_only_the_last_partial_block_is_copied(self, length):
        kv = PagedKVManager(16, 4)
        parent, child = sequence(length), sequence(length)
        compute(kv, parent)
        copies = kv.fork(parent, child)
        child.scheduled, child.computed = parent.scheduled, parent.computed
        kv.check()
        full, partial = divmod(length, 4)
        assert child.block_table[:full] == parent.block_table[:full]
        assert len(child.block_table) == full + bool(partial)
        if partial:
            assert copies == [PageCopy(parent.block_table[full], child.block_table[full])]
            assert child.block_table[full] != parent.block_table[full]
        else:
            assert copies == []

    def test_without_a_block_nothing_changes(self):
        kv = PagedKVManager(2, 4)
        parent, child = sequence(5), sequence(5)
        compute(kv, parent)
        assert kv.fork(parent, child) is None
        assert len(child.block_table) == 0
        kv.check()

    @pytest.mark.parametrize("length", [5, 8])
    def test_without_sharing_nothing_changes(self, length):
        kv = PagedKVManager(16, 4, False, sharing=False)
        parent, child = sequence(length), sequence(length)
        compute(kv, parent)
        assert kv.fork(parent, child) is None
        assert len(child.block_table) == 0
        kv.check()

    def test_whoever_is_left_holds_the_prompt(self):
        kv = PagedKVManager(8, 4)
        parent, child = sequence(9), sequence(9)
        compute(kv, parent)
        kv.fork(parent, child)
        child.scheduled = child.computed = 9
        kv.free(parent)
        kv.check()
        assert kv.total - kv.available == 3
        kv.free(child)
        assert kv.available == 8


class TestTruncate:
    def test_what_lies_past_is_dropped_and_not_found_again(self):
        kv = PagedKVManager(8, 4)
        seq = sequence(16)
        compute(kv, seq)
        seq.scheduled = seq.computed = 6
        kv.truncate(seq, 6)
        kv.check()
        assert len(seq.block_table) == 2
        assert len(kv.index()) == 1
        kv.free(seq)
        assert (kv.cached, kv.available) == (1, 8)

    def test_what_others_hold_stays(self):
        kv = PagedKVManager(8, 4)
        seq, other = sequence(9), sequence(9)
        compute(kv, seq)
        compute(kv, other)
        seq.scheduled = seq.computed = 0
        kv.truncate(seq, 0)
        kv.check()
        assert kv.match(sequence(9)).tokens == 8

    def test_the_sequence_can_go_on_with_other_tokens(self):
        kv = PagedKVManager(8, 4)
        seq = sequence((1, 2, 3, 4, 5, 6, 7, 8))
        compute(kv, seq)
        seq.scheduled = seq.computed = 4
        kv.truncate(seq, 4)
        del seq.tokens[4:]
        seq.tokens.extend((9, 9, 9, 9))
        compute_more = kv.allocate(seq, 8)
        seq.scheduled = seq.computed = 8
        kv.publish(seq)
        kv.check()
        assert compute_more
        assert kv.match(sequence((1, 2, 3, 4, 9, 9, 9, 9, 1))).tokens == 8
        assert kv.match(sequence((1, 2, 3, 4, 5, 6, 7, 8, 1))).tokens == 4


def test_only_computed_blocks_are_published():
    kv = PagedKVManager(8, 4)
    seq = sequence(12)
    kv.allocate(seq, 12)
    seq.scheduled, seq.computed = 12, 7
    kv.publish(seq)
    assert len(kv.index()) == 1
    assert seq.publish_at == 8
    seq.computed = 12
    kv.publish(seq)
    assert len(kv.index()) == 3


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda seq: seq.block_table.append(seq.block_table[0]),
        lambda seq: seq.block_table.pop(),
        lambda seq: setattr(seq, "scheduled", 13),
        lambda seq: setattr(seq, "published", 4),
        lambda seq: setattr(seq, "computed", 13),
    ],
)
def test_check_sees_corruption(corrupt):
    kv = PagedKVManager(8, 4)
    seq = sequence(12)
    compute(kv, seq)
    corrupt(seq)
    with pytest.raises(AssertionError):
        kv.check()


def test_check_sees_a_shared_block_that_will_be_written():
    kv = PagedKVManager(8, 4)
    seq = sequence(8)
    compute(kv, seq)
    compute(kv, sequence(9))
    kv.check()
    seq.scheduled = seq.computed = 7
    seq.published = 1
    with pytest.raises(AssertionError, match="shared"):
        kv.check()


def test_a_long_prompt_is_matched_quickly():
    kv = PagedKVManager(2048, 16)
    prompt = tuple(i % 40_000 for i in range(32_768))
    first = sequence(prompt)
    compute(kv, first)
    kv.free(first)
    seconds = []
    for _ in range(5):
        seq = sequence(prompt)
        start = time.perf_counter()
        assert kv.match(seq).tokens == 32_752
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.010
