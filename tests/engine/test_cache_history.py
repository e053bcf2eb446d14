"""What ``cache_report`` says, through the KV manager that feeds the history."""

import pytest

from mlxserve.engine.kv_manager import PagedKVManager
from mlxserve.types import CacheReport
from tests.engine.support import compute, sequence

SEEN = (1, 2, 3, 4, 5, 6, 7, 8, 9)


def explain(kv, *tokens, salt=""):
    seq = sequence(tokens, salt=salt)
    return kv.explain(seq, kv.match(seq))


@pytest.fixture
def kv():
    kv = PagedKVManager(8, 4)
    seq = sequence(SEEN)
    compute(kv, seq)
    kv.free(seq)
    return kv


def test_hit(kv):
    assert explain(kv, *SEEN) == CacheReport(8, None, "hit")
    assert explain(kv, *SEEN[:8]) == CacheReport(4, None, "hit")  # the last token is always left to compute
    assert explain(kv, 7) == CacheReport(0, None, "hit")  # less than a block is never cached


def test_other_token(kv):
    assert explain(kv, 1, 2, 3, 4, 5, 6, 0, 8, 9) == CacheReport(4, 6, "other_token")
    assert explain(kv, 1, 2, 3, 4, 0, 6, 7, 8, 9) == CacheReport(4, 4, "other_token")
    assert explain(kv, 1, 0, 3, 4, 5) == CacheReport(0, 1, "other_token")


def test_other_token_is_told_from_the_nearest_of_several(kv):
    compute(kv, sequence((1, 2, 3, 4, 5, 6, 0, 0, 9)))
    assert explain(kv, 1, 2, 3, 4, 5, 6, 0, 8, 9) == CacheReport(4, 7, "other_token")


def test_never_seen(kv):
    assert explain(kv, 9, 9, 9, 9, 9) == CacheReport(0, 0, "never_seen")
    assert explain(kv, *SEEN, 10, 11, 12, 13) == CacheReport(8, 8, "never_seen")  # a longer prompt than any before


def test_salt(kv):
    assert explain(kv, *SEEN, salt="tenant") == CacheReport(0, 0, "salt")
    assert explain(kv, 9, 9, 9, 9, 9, salt="tenant") == CacheReport(0, 0, "never_seen")


def test_evicted(kv):
    other = sequence(tuple(range(100, 132)))
    compute(kv, other)
    kv.free(other)
    assert explain(kv, *SEEN) == CacheReport(0, 0, "evicted")
    compute(kv, sequence(SEEN))
    assert explain(kv, *SEEN) == CacheReport(8, None, "hit")


def test_what_was_truncated_was_never_there(kv):
    seq = sequence((*SEEN[:4], 5, 5, 5, 5, 5))
    compute(kv, seq)
    seq.scheduled = seq.computed = 4
    kv.truncate(seq, 4)
    kv.free(seq)
    assert explain(kv, *SEEN[:4], 5, 5, 5, 5, 5) == CacheReport(4, 5, "other_token")


def test_memory_is_bounded():
    kv = PagedKVManager(4, 4)
    for i in range(100):
        seq = sequence(tuple(range(100 * i, 100 * i + 16)))
        compute(kv, seq)
        kv.free(seq)
    history = kv._history
    assert (len(history._blocks), len(history._evicted)) == (4, 4)
    assert len(history._children) <= 4
    assert len(history._first) == 1
