import pytest

from mlxserve.engine.metrics import WINDOW_S, Metrics


def test_tokens_per_second_before_the_window_is_full():
    metrics = Metrics(now=100.5)
    assert metrics.tokens_per_second(100.5) == 0
    metrics.decoded(101.0, 30)
    metrics.decoded(102.4, 30)
    assert metrics.tokens_per_second(102.5) == pytest.approx(30)


def test_tokens_per_second_forgets():
    metrics = Metrics(now=0.25)
    for second in range(60):
        metrics.decoded(second + 0.5, 40)
        metrics.decoded(second + 0.9, 10)
    assert metrics.tokens_per_second(60.0) == pytest.approx(50, rel=0.11)
    assert metrics.tokens_per_second(65.0) == pytest.approx(25, rel=0.2)
    assert metrics.tokens_per_second(60.0 + WINDOW_S + 1) == 0
    assert metrics.tokens_per_second(10_000.0) == 0
    metrics.decoded(10_000.0, 100)  # after a long silence nothing old is counted
    assert metrics.tokens_per_second(10_000.5) == pytest.approx(100 / (WINDOW_S + 0.5))
    assert metrics.decode_tokens == 60 * 50 + 100


def test_percentiles():
    metrics = Metrics(now=0.0)
    assert metrics.ttft_ms(0.5) is None
    for i in range(100, 0, -1):
        metrics.first_token(i / 1000)
    assert metrics.ttft_ms(0.5) == pytest.approx(51)
    assert metrics.ttft_ms(0.95) == pytest.approx(96)


def test_timings_are_bounded():
    metrics = Metrics(now=0.0)
    for _ in range(2000):
        metrics.first_token(9.0)
    for _ in range(1024):
        metrics.first_token(1.0)
    assert metrics.ttft_ms(0.99) == 1000


def test_batch_size():
    metrics = Metrics(now=0.0)
    for i, size in enumerate((3, 8, 2)):
        metrics.step(float(i), size)
    assert (metrics.steps, metrics.batch_size_last, metrics.batch_size_max, metrics.last_step_s) == (3, 2, 8, 2.0)
