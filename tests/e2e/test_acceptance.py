"""The acceptance criteria on the real model; the timing ones assert an order that holds on a busy machine too.

Greedy equality with transformers, the second criterion, is ``test_parity.test_greedy_equals_transformers``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mlxserve import LLM
from mlxserve.benchmark import acceptance


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", backend="torch", max_num_seqs=32, max_model_len=2048) as llm:
        yield llm


def test_1_a_seed_gives_the_same_text_alone_and_batched(llm: LLM) -> None:
    assert acceptance.seeded_equal(llm) == 1


def test_3_eight_at_once_are_faster_than_one_at_a_time(llm: LLM) -> None:
    assert acceptance.parallel_ratio(llm) > 1.2


def test_4_a_cached_prompt_starts_sooner(llm: LLM) -> None:
    assert acceptance.warm_ratio(llm) < 0.6


def test_5_no_block_is_wasted() -> None:
    with LLM("smollm2-135m", backend="torch", max_num_seqs=32, max_model_len=2048, prefix_caching=False) as llm:
        assert acceptance.wasted_blocks(llm) == 0
        stats = llm.core.stats()
        assert (stats.kv_blocks_used, stats.kv_blocks_free) == (0, stats.kv_blocks_total)


def test_6_the_agreement_measures_something(llm: LLM) -> None:
    assert acceptance.top5_agreement(llm, llm) == 1
