"""Both samplers against the plain one, and the properties that decision 5 of the design promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlxserve.backends import get_backend
from mlxserve.backends.sampling import NOT_A_NUMBER, NOTHING_ALLOWED, plan_samples
from mlxserve.engine.interfaces import Sampled, SampleInputs, SampleRow, ScoreRow
from mlxserve.types import SamplingParams
from tests.backends import plain_sampler

BACKENDS = ("torch", "mlx")
NEAR_TIE = 1e-4
Logits = NDArray[np.float32]


def run(backend: str, logits: Logits, rows: Sequence[SampleRow], scores: Sequence[ScoreRow] = ()) -> Sampled:
    device = get_backend(backend, "float32")  # type: ignore[arg-type]
    if backend == "mlx":
        import mlx.core as mx

        array: Any = mx.array(logits)
    else:
        array = torch.from_numpy(logits.copy())
    return device.sample(array, plan_samples(SampleInputs(list(rows), list(scores)), logits.shape[1])).finish()


def row(index: int = 0, seed: int = 1, position: int = 0, choice: int = 0, **params: Any) -> SampleRow:
    extra = {k: params.pop(k) for k in ("banned", "mask", "output_counts", "prompt_ids") if k in params}
    return SampleRow(index, SamplingParams(**params), seed, position, choice, **extra)


def tokens(result: Sampled) -> list[int]:
    return [t for (t,) in result.tokens]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def logits_of(*probabilities: float) -> Logits:
    return np.log(np.array([probabilities], np.float32))


def seen(backend: str, logits: Logits, draws: int = 400, **params: Any) -> set[int]:
    """Every token that comes up in many draws."""
    return set(tokens(run(backend, logits, [row(seed=s, **params) for s in range(draws)])))


class TestAgainstThePlainSampler:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    @pytest.mark.parametrize("name", BACKENDS)
    def test_any_parameters(self, name: str, data: st.DataObject) -> None:
        vocab = data.draw(st.sampled_from([3, 40, 300, 700]))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
        logits = rng.normal(scale=3, size=(4, vocab)).astype(np.float32)
        rows = [data.draw(self.rows(vocab)) for _ in range(data.draw(st.integers(1, 5)))]
        result = run(name, logits, rows)
        for r, token, margin in zip(rows, tokens(result), result.margins, strict=True):
            want, gap = plain_sampler.sample(logits[r.row], r)
            assert token == want or gap < NEAR_TIE
            assert margin == pytest.approx(gap, abs=1e-3) or gap < NEAR_TIE

    @staticmethod
    def rows(vocab: int) -> st.SearchStrategy[SampleRow]:
        ids = st.integers(0, vocab - 1)
        return st.builds(
            SampleRow,
            row=st.integers(0, 3),
            params=st.builds(
                SamplingParams,
                temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
                top_k=st.sampled_from([-1, 0, 1, 2, 7, 299, 1000]),
                top_p=st.sampled_from([0.0, 0.31, 0.77, 0.9999, 1.0]),
                min_p=st.sampled_from([0.0, 0.013, 0.37, 1.0]),
                repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
                presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
                frequency_penalty=st.sampled_from([0.0, 0.4, -0.4]),
                logit_bias=st.dictionaries(ids, st.floats(-5, 5), max_size=3).map(lambda d: tuple(d.items())),
            ),
            seed=st.integers(-(2**63), 2**64 - 1),
            position=st.integers(0, 10_000),
            choice=st.integers(0, 127),
            banned=st.lists(ids, max_size=1, unique=True).map(tuple),
            mask=st.none() | st.just(b"\xfe" * (-(-vocab // 8))),
            output_counts=st.dictionaries(ids, st.integers(1, 4), max_size=4),
            prompt_ids=st.frozensets(ids, max_size=4),
        )

    def test_a_large_vocabulary(self) -> None:
        """torch sorts only the head of it first: a flat row needs more than that, a peaked one less."""
        rng = np.random.default_rng(0)
        logits = np.stack([rng.normal(scale=s, size=20_000) for s in (0.1, 1, 6)]).astype(np.float32)
        rows = [
            row(i, seed=s, top_p=p, top_k=k) for i in range(3) for s in range(6) for p, k in ((0.5, 0), (0.97, 500))
        ]
        want = [plain_sampler.sample(logits[r.row], r) for r in rows]
        for name in BACKENDS:
            for token, (expected, gap) in zip(tokens(run(name, logits, rows)), want, strict=True):
                assert token == expected or gap < NEAR_TIE, name


class TestDistribution:
    def test_frequencies_are_the_probabilities(self, backend: str) -> None:
        probabilities = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
        draws = 6000
        rows = [row(seed=9, position=i) for i in range(draws)]
        counts = Counter(tokens(run(backend, logits_of(*probabilities), rows)))
        observed = np.array([counts[i] for i in range(6)])
        chi_square = ((observed - draws * probabilities) ** 2 / (draws * probabilities)).sum()
        assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in 1000

    def test_temperature_sharpens(self, backend: str) -> None:
        rows = [row(seed=3, position=i, temperature=0.5) for i in range(4000)]
        share = tokens(run(backend, logits_of(2 / 3, 1 / 3), rows)).count(0) / 4000
        assert share == pytest.approx(0.8, abs=0.03)  # 4 : 1

    def test_a_tiny_temperature_is_greedy(self, backend: str) -> None:
        assert seen(backend, logits_of(0.4, 0.35, 0.25), 50, temperature=1e-30) == {0}


class TestSeeds:
    def test_alone_or_in_company(self, backend: str) -> None:
        """The same seed, position and choice give the same token whatever else is sampled, and in whatever row."""
        logits = np.random.default_rng(5).normal(size=(6, 500)).astype(np.float32)
        rows = [row(i, seed=40 + i, position=i, top_p=0.9) for i in range(6)]
        together = tokens(run(backend, logits, rows))
        assert tokens(run(backend, logits, rows[::-1])) == together[::-1]
        assert [
            tokens(run(backend, logits[i : i + 1], [row(0, 40 + i, i, top_p=0.9)]))[0] for i in range(6)
        ] == together

    def test_choices_of_one_row_differ(self, backend: str) -> None:
        logits = np.zeros((1, 1000), np.float32)
        assert len(set(tokens(run(backend, logits, [row(0, 7, 5, choice) for choice in range(20)])))) > 15


class TestGreedy:
    def test_the_first_maximum_wins(self, backend: str) -> None:
        logits = np.zeros((2, 3000), np.float32)
        logits[0, [5, 70, 2999]] = 4.0
        logits[1, [2500, 2600]] = 4.0
        rows = [row(0, temperature=0), row(1, temperature=0)]
        assert tokens(run(backend, logits, rows)) == [5, 2500]
        assert tokens(run(backend, logits, [*rows, row(0, temperature=0, logit_bias=((9, 1.0),))])) == [5, 2500, 5]

    def test_no_rows(self, backend: str) -> None:
        assert run(backend, np.zeros((2, 5), np.float32), []) == Sampled(tokens=[], logprobs=[])

    def test_margins(self, backend: str) -> None:
        result = run(backend, np.array([[1.0, 3.5, 2.0]], np.float32), [row(temperature=0)])
        assert result.margins == [1.5]
        alone = run(backend, np.array([[1.0, 3.5, 2.0]], np.float32), [row(temperature=0, banned=(0, 2))])
        assert alone.margins == [math.inf]


class TestFilters:
    """Boundaries, seen over many draws."""

    logits = logits_of(0.4, 0.3, 0.2, 0.1)

    @pytest.mark.parametrize(
        ("k", "kept"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (4, {0, 1, 2, 3}), (9, {0, 1, 2, 3})]
    )
    def test_top_k(self, backend: str, k: int, kept: set[int]) -> None:
        assert seen(backend, self.logits, top_k=k) == kept

    def test_top_k_keeps_ties(self, backend: str) -> None:
        assert seen(backend, logits_of(0.4, 0.2, 0.2, 0.2), top_k=2) == {0, 1, 2, 3}

    @pytest.mark.parametrize(
        ("p", "kept"),
        [(0.0, {0}), (0.39, {0}), (0.41, {0, 1}), (0.69, {0, 1}), (0.71, {0, 1, 2}), (0.95, {0, 1, 2, 3})],
    )
    def test_top_p(self, backend: str, p: float, kept: set[int]) -> None:
        assert seen(backend, self.logits, top_p=p) == kept

    def test_top_p_counts_what_top_k_left(self, backend: str) -> None:
        """0.4 is 4/7 of the two best: not enough for 0.6, though it would be with 0.55 of all."""
        assert seen(backend, self.logits, top_k=2, top_p=0.55) == {0}
        assert seen(backend, self.logits, top_k=2, top_p=0.6) == {0, 1}

    @pytest.mark.parametrize(("p", "kept"), [(0.0, {0, 1, 2, 3}), (0.26, {0, 1, 2}), (0.51, {0, 1}), (1.0, {0})])
    def test_min_p_is_relative_to_the_best(self, backend: str, p: float, kept: set[int]) -> None:
        assert seen(backend, self.logits, min_p=p) == kept

    def test_rows_with_and_without_filters(self, backend: str) -> None:
        rows = [row(seed=s, top_k=1 if s % 2 else 0) for s in range(300)]
        drawn = tokens(run(backend, self.logits, rows))
        assert set(drawn[1::2]) == {0}
        assert set(drawn[::2]) == {0, 1, 2, 3}


class TestAdjustments:
    def greedy(self, backend: str, logits: Sequence[float], **given: Any) -> int:
        return tokens(run(backend, np.array([logits], np.float32), [row(temperature=0, **given)]))[0]

    def test_repetition_divides_positive_and_multiplies_negative(self, backend: str) -> None:
        assert self.greedy(backend, [2.0, 1.9], repetition_penalty=1.2, prompt_ids=frozenset({0})) == 1
        assert self.greedy(backend, [-1.0, -1.1], repetition_penalty=1.2, output_counts={0: 1}) == 1
        assert self.greedy(backend, [2.0, 1.0], repetition_penalty=1.2, prompt_ids=frozenset({0})) == 0

    def test_a_token_of_prompt_and_output_is_punished_once(self, backend: str) -> None:
        both = {"prompt_ids": frozenset({0}), "output_counts": {0: 3}}
        assert self.greedy(backend, [2.0, 1.5], repetition_penalty=1.3, **both) == 0  # 1.54, not 1.18

    def test_frequency_counts_and_presence_does_not(self, backend: str) -> None:
        assert self.greedy(backend, [2.0, 1.5], frequency_penalty=0.2, output_counts={0: 2}) == 0
        assert self.greedy(backend, [2.0, 1.5], frequency_penalty=0.2, output_counts={0: 3}) == 1
        assert self.greedy(backend, [2.0, 1.5], presence_penalty=0.4, output_counts={0: 9}) == 0

    def test_frequency_ignores_the_prompt(self, backend: str) -> None:
        assert self.greedy(backend, [2.0, 1.5], frequency_penalty=2.0, prompt_ids=frozenset({0})) == 0

    def test_bias_forces_and_bans(self, backend: str) -> None:
        assert self.greedy(backend, [9.0, -30.0, 1.0], logit_bias=((1, 100.0),)) == 1
        assert self.greedy(backend, [9.0, 3.0, 1.0], logit_bias=((0, -100.0),)) == 1

    def test_a_banned_token_beats_no_bias(self, backend: str) -> None:
        assert self.greedy(backend, [1.0, 0.5], banned=(0,), logit_bias=((0, 100.0),)) == 1

    def test_mask_bits_are_little_endian_and_end(self, backend: str) -> None:
        logits = list(range(12))
        assert self.greedy(backend, logits, mask=b"\x05") == 2  # tokens past the mask's end are not allowed
        assert self.greedy(backend, logits, mask=b"\x00\x02") == 9

    def test_masked_tokens_are_never_drawn(self, backend: str) -> None:
        assert seen(backend, logits_of(0.4, 0.3, 0.2, 0.1), mask=b"\x0a") == {1, 3}


class TestErrors:
    def test_not_a_number_harms_its_own_row_only(self, backend: str) -> None:
        logits = np.random.default_rng(2).normal(size=(4, 50)).astype(np.float32)
        logits[1, 7] = np.nan
        logits[2, 3] = np.inf
        for params in ({"temperature": 0}, {"top_p": 0.9}, {"top_k": 3}, {"presence_penalty": 1.0}):
            result = run(backend, logits, [row(i, **params) for i in range(4)])
            assert result.errors == {1: NOT_A_NUMBER, 2: NOT_A_NUMBER}
            healthy = run(backend, logits[[0, 3]], [row(i, **params) for i in range(2)])
            assert [result.tokens[0], result.tokens[3]] == healthy.tokens

    def test_nothing_allowed(self, backend: str) -> None:
        result = run(backend, np.zeros((2, 8), np.float32), [row(0, mask=b"\x00"), row(1, mask=b"\x10")])
        assert result.errors == {0: NOTHING_ALLOWED}
        assert result.tokens[1] == (4,)


class TestLogprobs:
    def test_they_are_those_of_the_raw_logits(self, backend: str) -> None:
        logits = np.random.default_rng(3).normal(scale=2, size=(2, 30)).astype(np.float32)
        want = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
        rows = [row(0, temperature=0, logprobs=3, logit_bias=((4, 50.0),)), row(1), row(1, logprobs=0, temperature=0.5)]
        result = run(backend, logits, rows, [ScoreRow(1, 11, 2), ScoreRow(0, 0, 0)])
        (first,), none, (last,) = result.logprobs[0], result.logprobs[1], result.logprobs[2]
        assert none is None
        assert first.token_id == 4
        assert first.logprob == pytest.approx(want[0, 4], abs=1e-5)
        best = np.argsort(-want[0])[:3]
        assert [t for t, _ in first.top] == best.tolist()
        assert [v for _, v in first.top] == pytest.approx(want[0, best], abs=1e-5)
        assert last.token_id == result.tokens[2][0]
        assert last.logprob == pytest.approx(want[1, last.token_id], abs=1e-5)
        assert last.top == ()
        scored, other = result.scores
        assert (scored.token_id, len(scored.top), other.token_id, other.top) == (11, 2, 0, ())
        assert scored.logprob == pytest.approx(want[1, 11], abs=1e-5)

    def test_more_alternatives_than_tokens(self, backend: str) -> None:
        result = run(backend, logits_of(0.7, 0.3), [row(temperature=0, logprobs=20)])
        assert result.logprobs[0] is not None
        assert [t for t, _ in result.logprobs[0][0].top] == [0, 1]


def test_the_noise_compiled_for_a_gpu_has_the_same_bits() -> None:
    """On the CPU device, for one and for several rows: other code is made for those."""
    import mlx.core as mx

    from mlxserve.backends.mlx.sampler import gumbel

    compiled = mx.compile(gumbel, shapeless=True)
    for rows in (1, 3, 4):
        words = np.random.default_rng(rows).integers(0, 2**32, (4, rows, 1)).astype(np.uint64)
        counter = tuple(mx.array(word) for word in words)
        plain = np.array(gumbel(counter, 2000))
        assert np.array_equal(np.array(compiled(counter, 2000)), plain)
        assert np.unique(plain).size > 1900
