"""The loop's own cost, with a wide margin for a busy machine; ``python -m bench.host`` measures it properly."""

import pytest

from bench.host import match_ms, measure

MARGIN = 3


@pytest.mark.parametrize("sequences", [1, 16, 64])
def test_step(sequences):
    row = measure(sequences, context=50, steps=60)
    assert row.median_us < MARGIN * row.limit_us


def test_context_length_does_not_matter():
    short, long = (min(measure(16, context, steps=60).median_us for _ in range(3)) for context in (50, 3000))
    assert long < 1.5 * short


def test_prefix_match():
    assert match_ms(32_768)["median_ms"] < 10
