from __future__ import annotations

import pytest

from mlxserve.benchmark.summary import Objective, RequestRecord, percentile, summarise


def record(first: float, end: float, output: int, **more: object) -> RequestRecord:
    return RequestRecord(first_token_s=first, end_s=end, output_tokens=output, **more)  # type: ignore[arg-type]


def test_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3
    assert percentile([4, 1, 3, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile(range(1, 101), 1.0) == 100


def test_tpot_leaves_the_first_token_out() -> None:
    assert record(1.0, 2.0, 11).tpot_s == pytest.approx(0.1)
    assert record(1.0, 2.0, 1).tpot_s is None
    assert RequestRecord().tpot_s is None


def test_rates_count_what_succeeded() -> None:
    records = [record(0.1, 1.0, 10, prompt_tokens=30, cached_tokens=15), RequestRecord(error="HTTP 500")]
    figures = summarise(records, 2.0)
    assert figures["requests"] == 2
    assert figures["failed"] == 1
    assert figures["requests_per_s"] == 0.5
    assert figures["output_tokens_per_s"] == 5
    assert figures["total_tokens_per_s"] == 20
    assert figures["cached_share"] == 0.5
    assert figures["goodput_per_s"] is None


def test_what_nobody_reported_is_none() -> None:
    figures = summarise([record(0.1, 1.0, 10)], 1.0)
    assert figures["total_tokens_per_s"] is None
    assert figures["cached_share"] is None


def test_a_sum_over_some_of_the_requests_is_not_given() -> None:
    unknown = RequestRecord(first_token_s=0.1, end_s=1.0)
    figures = summarise([record(0.1, 1.0, 10), unknown], 1.0)
    assert figures["output_tokens_per_s"] is None
    assert figures["requests_per_s"] == 2
    assert unknown.tpot_s is None


def test_goodput_needs_every_limit() -> None:
    good, late, slow = record(0.1, 1.0, 10), record(0.6, 1.0, 10), record(0.1, 9.0, 10)
    objective = Objective(ttft_s=0.5, tpot_s=0.2)
    assert [objective.met(one) for one in (good, late, slow, RequestRecord(error="x"))] == [True, False, False, False]
    assert summarise([good, late, slow], 2.0, objective)["goodput_per_s"] == 0.5
