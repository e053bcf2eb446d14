"""What the scheduler plans, seen in the batches that the runner gets."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mlxserve.engine.core import Engine
from mlxserve.errors import ContextLengthExceeded
from tests.engine.support import VOCAB, Outputs, collect, expected, make_engine, request, run
from tests.fakes import ContiguousKVManager, FakeRunner


def lengths(runner: FakeRunner, step: int) -> list[int]:
    """Tokens that each sequence computes in a step."""
    starts = runner.batches[step].query_starts
    return [b - a for a, b in pairwise(starts)]


def steps(engine: Engine, count: int, outputs: Outputs | None = None) -> Outputs:
    outputs = {} if outputs is None else outputs
    for _ in range(count):
        collect(outputs, engine.step())
        engine.kv.check()
    return outputs


def small(num_blocks: int = 64, block_size: int = 16) -> FakeRunner:
    return FakeRunner(num_blocks=num_blocks, block_size=block_size, vocab_size=VOCAB)


class TestBudget:
    def test_decodes_first_then_running_prefills_then_admissions(self):
        runner = small()
        engine = make_engine(runner, max_num_seqs=4, prefill_chunk=20, max_num_batched_tokens=45)
        engine.add(request("a", 5, ignore_eos=True))
        steps(engine, 1)
        engine.add(request("b", 50, ignore_eos=True))
        steps(engine, 1)
        engine.add(request("c", 60, ignore_eos=True))
        engine.add(request("d", 60, ignore_eos=True))
        steps(engine, 2)
        assert lengths(runner, 1) == [1, 20]  # a decodes, b begins
        assert lengths(runner, 2) == [1, 20, 20, 4]  # b goes on before c and d begin, d with what is left
        assert lengths(runner, 3) == [1, 10, 20, 14]

    def test_a_prefill_for_which_nothing_is_left_is_not_in_the_step(self):
        runner = small()
        engine = make_engine(runner, max_num_seqs=8, prefill_chunk=4, max_num_batched_tokens=12)
        engine.add(request("a", (3,) * 5, n=5, ignore_eos=True))
        for name in "bcd":
            engine.add(request(name, 40))
        steps(engine, 3)
        assert [lengths(runner, i) for i in range(3)] == [[4, 4, 4], [1, 4, 4, 3], [1, 1, 1, 1, 1, 4, 3]]
        assert runner.violations == []

    def test_a_prefill_is_cut_into_chunks(self):
        runner = small()
        run(make_engine(runner, prefill_chunk=64, max_num_batched_tokens=512), request(prompt=150, max_tokens=1))
        assert [lengths(runner, i) for i in range(3)] == [[64], [64], [22]]

    def test_no_more_than_max_num_seqs_run(self):
        runner = small()
        run(make_engine(runner, max_num_seqs=3), *(request(f"r{i}", 4 + i, max_tokens=5) for i in range(10)))
        assert max(len(b.block_tables) for b in runner.batches) == 3

    def test_nothing_is_scheduled_past_the_length(self):
        runner = small()
        run(make_engine(runner), request(max_tokens=5, ignore_eos=True))
        assert len(runner.batches) == 5

    def test_admission_is_in_order_of_arrival(self):
        engine = make_engine(small(), max_num_seqs=1)
        outputs = run(engine, *(request(f"r{i}", 3 + i, max_tokens=2) for i in range(5)))
        assert list(outputs) == [(f"r{i}", 0) for i in range(5)]


class TestFairness:
    """SCH-06."""

    def test_a_running_stream_gets_a_token_in_every_step_of_a_long_prefill(self):
        runner = small(num_blocks=600)
        engine = make_engine(runner, prefill_chunk=64, max_num_batched_tokens=128, max_model_len=8000)
        a, b = request("a", 4, max_tokens=200, ignore_eos=True), request("b", (7,) * 6000, max_tokens=2)
        engine.add(a)
        outputs = steps(engine, 11)
        engine.add(b)
        gaps = 0
        while ("b", 0) not in outputs:
            before = len(outputs["a", 0].tokens)
            steps(engine, 1, outputs)
            gaps += len(outputs["a", 0].tokens) == before
        assert gaps == 0
        assert len(runner.batches) <= 11 + 6000 / 64 + 3
        while engine.has_work():
            steps(engine, 1, outputs)
        assert outputs["a", 0].tokens == expected(a, runner=runner, limit=8000)
        assert outputs["b", 0].tokens == expected(b, runner=runner, limit=8000)

    def test_decodes_do_not_starve_a_newcomer(self):
        runner = small(num_blocks=200)
        engine = make_engine(runner, max_num_seqs=8, prefill_chunk=1, max_num_batched_tokens=9)
        for i in range(7):
            engine.add(request(f"r{i}", 1, ignore_eos=True))
        outputs = steps(engine, 12)
        engine.add(request("new", 20, max_tokens=1))
        steps(engine, 30, outputs)
        assert outputs["new", 0].reason == "length"

    def test_priority(self):
        engine = make_engine(small(), max_num_seqs=1, schedule_policy="priority")
        engine.add(request("first", 3, max_tokens=3))
        outputs = steps(engine, 1)
        for name, priority in (("low", 2), ("high", -1), ("middle", 0)):
            engine.add(request(name, 4, max_tokens=3, priority=priority))
        while engine.has_work():
            steps(engine, 1, outputs)
        assert [key[0] for key in outputs] == ["first", "high", "middle", "low"]


class TestPreemption:
    def requests(self, **fields):
        return [request(f"r{i}", (i + 1,) * 9, max_tokens=30, ignore_eos=True, **fields) for i in range(3)]

    @pytest.mark.parametrize("caching", [True, False])
    @pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 5, "frequency_penalty": 1.0, "logprobs": 1}])
    def test_outputs_are_unaffected(self, caching, fields):
        runner = small(num_blocks=16, block_size=4)
        engine = make_engine(runner, prefix_caching=caching)
        requests = self.requests(**fields)
        outputs = run(engine, *requests)
        for r in requests:
            assert outputs[r.request_id, 0].tokens == expected(r, runner=runner)
            assert outputs[r.request_id, 0].usage.cached_tokens == 0  # recomputation is not a cache hit
        assert engine.stats().preemptions_total > 0
        assert engine.stats().prefix_cache_hits == 0
        assert runner.violations == []

    def test_the_newest_gives_way_and_nothing_is_admitted_in_that_step(self):
        runner = small(num_blocks=16, block_size=4)
        engine = make_engine(runner, max_num_seqs=4)
        for r in self.requests():
            engine.add(r)
        while not engine.stats().preemptions_total:
            engine.add(request(f"late{engine.stats().steps_total}", (9,) * 3, max_tokens=1))
            running = [v.request_id for v in engine.snapshot().running]
            steps(engine, 1)
        after = engine.snapshot()
        assert [v.request_id for v in after.running] == running[: len(after.running)]
        assert after.waiting[0].request_id == running[len(after.running)]

    def test_the_oldest_always_goes_on(self):
        runner = small(num_blocks=16, block_size=4)
        engine = make_engine(runner)
        oldest, *others = self.requests()
        engine.add(oldest)
        for r in others:
            engine.add(r)
        outputs = steps(engine, 2)
        while ("r0", 0) not in outputs or outputs["r0", 0].reason is None:
            before = len(outputs["r0", 0].tokens)
            steps(engine, 1, outputs)
            assert len(outputs["r0", 0].tokens) == before + 1


class TestFork:
    @pytest.mark.parametrize("prompt", [1, 15, 16, 17, 100])
    def test_the_prompt_is_computed_once_and_the_last_partial_block_copied(self, prompt):
        runner = small()
        engine = make_engine(runner)
        r = request(prompt=prompt, n=4, max_tokens=20, temperature=1.0, seed=3)
        outputs = run(engine, r)
        assert engine.stats().prefill_tokens_total == prompt
        assert sum(len(b.page_copies) for b in runner.batches) == (3 if prompt % 16 else 0)
        texts = [outputs["r", i].tokens for i in range(4)]
        assert texts == [expected(r, i) for i in range(4)]
        assert len(set(texts)) == 4
        assert runner.violations == []

    def test_more_choices_than_places(self):
        runner = small()
        engine = make_engine(runner, max_num_seqs=3)
        r = request(prompt=40, n=8, max_tokens=6, temperature=1.0, seed=3)
        outputs = run(engine, r)
        assert [outputs["r", i].tokens for i in range(8)] == [expected(r, i) for i in range(8)]
        assert engine.stats().prefill_tokens_total == 40 + 5 * (40 - 32)  # the later ones find two blocks cached
        assert {o.usage.cached_tokens for o in outputs.values()} == {0}
        assert engine.stats().prefix_cache_hits == 0

    @pytest.mark.parametrize("when", [0, 1, 2, 3, 5])
    @pytest.mark.parametrize("gone", [0, 1])
    def test_a_choice_is_aborted(self, when, gone):
        runner = small()
        engine = make_engine(runner, prefill_chunk=8)
        r = request(prompt=20, n=3, max_tokens=9, ignore_eos=True, temperature=1.0, seed=4)
        engine.add(r)
        outputs = steps(engine, when)
        engine.abort("r", gone)
        while engine.has_work():
            steps(engine, 1, outputs)
        for i in range(3):
            assert outputs["r", i].reason == ("abort" if i == gone else "length")
            assert outputs["r", i].tokens == expected(r, i)[: len(outputs["r", i].tokens)]
        assert runner.violations == []


class TestImpossible:
    """SCH-01: a request that can never fit is refused at once, and nobody waits behind it."""

    def test_prompt_and_prompt_with_answer(self):
        engine = make_engine(small(num_blocks=64), max_model_len=4096)
        for prompt, max_tokens in ((2000, None), (900, 500)):
            with pytest.raises(ContextLengthExceeded, match="1024"):
                engine.add(request("big", (5,) * prompt, max_tokens=max_tokens))
        outputs = run(engine, *(request(f"r{i}", 10, max_tokens=5) for i in range(4)))
        assert {o.reason for o in outputs.values()} <= {"stop", "length"}
        assert len(outputs) == 4

    def test_without_max_tokens_an_answer_runs_to_what_the_pool_can_hold(self):
        runner = small(num_blocks=8, block_size=4)
        outputs = run(make_engine(runner, max_num_seqs=2), request(prompt=5, ignore_eos=True))
        assert outputs["r", 0].reason == "length"
        assert len(outputs["r", 0].tokens) == 32 - 5

    def test_the_largest_that_fits_runs_beside_others(self):
        runner = small(num_blocks=8, block_size=4)
        big = request("big", 20, max_tokens=12, ignore_eos=True)
        others = [request(f"r{i}", (i,) * 4, max_tokens=8, ignore_eos=True) for i in range(4)]
        outputs = run(make_engine(runner), *others[:2], big, *others[2:])
        for r in (big, *others):
            assert outputs[r.request_id, 0].tokens == expected(r, runner=runner)


def test_small_pool_serves_everything_and_returns_to_idle():
    """PFX-08."""
    runner = small(num_blocks=64)
    engine = make_engine(runner, max_num_seqs=8, max_num_batched_tokens=256)
    distinct = [request(f"d{i}", tuple((i * 13 + j * 7) % VOCAB for j in range(200)), max_tokens=5) for i in range(50)]
    shared = [request(f"s{i}", (*range(150), 500 + i, 501 + i), max_tokens=20) for i in range(8)]
    again = [request(f"a{i}", r.prompt, max_tokens=5) for i, r in enumerate(distinct[:5])]
    for phase in ([[r] for r in distinct], [shared], [[r] for r in again]):
        for group in phase:
            outputs = run(engine, *group)
            for r in group:
                assert outputs[r.request_id, 0].tokens == expected(r, runner=runner, limit=512)
        assert engine.stats().kv_blocks_used == engine.stats().kv_blocks_cached
    assert runner.violations == []


def test_a_naive_contiguous_cache_does_the_same():
    runner = small(num_blocks=40, block_size=4)
    requests = [request(f"r{i}", 3 + 5 * i, max_tokens=12, n=1 + i % 3, temperature=1.0, seed=i) for i in range(6)]
    engine = make_engine(runner, kv=ContiguousKVManager(40, 4))
    outputs = run(engine, *requests)
    for r in requests:
        for i in range(r.params.n):
            assert outputs[r.request_id, i].tokens == expected(r, i, runner=runner)
    assert engine.kv.available == 40
    assert runner.violations == []
