from __future__ import annotations

import random
import statistics

import pytest

from mlxserve.benchmark.distributions import arrival_times, lengths
from mlxserve.benchmark.prompts import instructions, unique_prompts
from mlxserve.errors import ConfigError


def test_lengths_follow_their_form() -> None:
    rng = random.Random(0)
    assert {lengths("--x", "7")(rng) for _ in range(20)} == {7}
    assert {lengths("--x", "3-5")(rng) for _ in range(200)} == {3, 4, 5}
    drawn = [lengths("--x", "100~10")(rng) for _ in range(2000)]
    assert statistics.mean(drawn) == pytest.approx(100, abs=1)
    assert statistics.stdev(drawn) == pytest.approx(10, abs=1)
    assert min(lengths("--x", "1~5")(rng) for _ in range(200)) == 1


@pytest.mark.parametrize("text", ["", "0", "x", "5-3", "-4", "3-", "1.5"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--x is"):
        lengths("--x", text)


def test_arrivals() -> None:
    rng = random.Random(0)
    assert arrival_times("closed", 1, 3, rng) == [None, None, None]
    assert arrival_times("fixed", 4, 3, rng) == [0, 0.25, 0.5]
    times = [time for time in arrival_times("poisson", 10, 2000, rng) if time is not None]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200, rel=0.1)


def test_prompts_share_exactly_what_they_are_told_to() -> None:
    prompts = unique_prompts([50] * 8, 0.4, seed=3, run="a")
    assert prompts == unique_prompts([50] * 8, 0.4, seed=3, run="a")
    assert len({tuple(prompt.split()[:21]) for prompt in prompts}) == 1
    assert len({prompt.split()[21] for prompt in prompts}) == 8
    assert len({prompt.split()[0] for prompt in unique_prompts([50] * 8, 0.0, seed=3)}) == 8


def test_nothing_is_shared_with_a_run_before() -> None:
    first, second = (unique_prompts([50], 0.4, seed=3, run=run)[0].split() for run in ("a", "b"))
    assert first[0] != second[0]
    assert first[1:21] == second[1:21]


def test_instructions_differ_behind_one_system_prompt() -> None:
    made = instructions(40)
    assert made == instructions(40)
    assert len({one.system for one in made}) == 1
    assert len({one.user for one in made}) == 40
    assert max(len(one.user) for one in made) > 4 * min(len(one.user) for one in made)
