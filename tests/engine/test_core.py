"""The step loop: what comes out, when, and what one request's failure does to the others."""

from __future__ import annotations

import gc
import weakref
from array import array

import pytest

from mlxserve.engine.interfaces import SampleRow
from mlxserve.errors import BadRequest
from mlxserve.types import CacheReport
from tests.engine.support import VOCAB, Outputs, collect, expected, make_engine, request, run
from tests.fakes import FakeRunner, Faults, VirtualClock, logprob


def runner_with(**fields) -> FakeRunner:
    return FakeRunner(vocab_size=VOCAB, **fields)


class TestOutput:
    def test_each_step_gives_one_token_and_the_last_delta_the_usage(self):
        r = request(prompt=20, max_tokens=6, ignore_eos=True)
        output = run(make_engine(), r)["r", 0]
        assert [len(d.token_ids) for d in output.deltas] == [1] * 6
        assert output.tokens == expected(r)
        assert (output.reason, output.usage.prompt_tokens, output.usage.completion_tokens) == ("length", 20, 6)
        assert all(d.usage is None and d.finish_reason is None for d in output.deltas[:-1])

    def test_stop_tokens_and_min_tokens(self):
        plain = expected(request(max_tokens=30, ignore_eos=True))
        stop = plain[4]
        r = request(max_tokens=30, ignore_eos=True, stop_token_ids=(stop,))
        output = run(make_engine(), r)["r", 0]
        assert output.tokens == plain[: plain.index(stop) + 1]
        assert output.reason == "stop"
        later = request(max_tokens=30, ignore_eos=True, stop_token_ids=(stop,), min_tokens=12)
        output = run(make_engine(), later)["r", 0]
        assert stop not in output.tokens[:12]
        assert output.tokens == expected(later)

    def test_eos(self):
        eos = expected(request(max_tokens=9, ignore_eos=True))[3]
        engine = make_engine()
        engine._eos = frozenset((eos,))
        assert run(engine, request(max_tokens=9))["r", 0].reason == "stop"
        assert run(engine, request(max_tokens=9, ignore_eos=True))["r", 0].reason == "length"

    def test_logprobs_come_with_their_tokens(self):
        r = request(max_tokens=5, logprobs=3)
        output = run(make_engine(), r)["r", 0]
        assert [p.token_id for p in output.logprobs] == list(output.tokens)
        assert all(len(d.logprobs or ()) == len(d.token_ids) for d in output.deltas)

    @pytest.mark.parametrize("chunk", [3, 7, 64])
    @pytest.mark.parametrize("max_tokens", [0, 4])
    def test_prompt_logprobs(self, chunk, max_tokens):
        r = request(prompt=20, max_tokens=max_tokens, prompt_logprobs=2, ignore_eos=True, n=2)
        engine = make_engine(prefill_chunk=chunk)
        run(engine, request("before", 20, max_tokens=1))
        outputs = run(engine, r)
        first = outputs["r", 0].deltas[0]
        assert first.prompt_logprobs is not None
        assert first.prompt_logprobs[0] is None
        assert [s and s.token_id for s in first.prompt_logprobs] == [None, *r.prompt[1:]]
        for position in range(1, 20):
            assert first.prompt_logprobs[position] == logprob(array("i", r.prompt[:position]), r.prompt[position], 2)
        assert [d.prompt_logprobs for d in outputs["r", 1].deltas] == [None] * len(outputs["r", 1].deltas)
        assert outputs["r", 0].usage.cached_tokens == 0
        assert {o.reason for o in outputs.values()} == {"length"}
        assert [len(outputs["r", i].tokens) for i in range(2)] == [max_tokens] * 2

    @pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257])
    def test_a_prompt_that_is_cached_up_to_its_last_token(self, length):
        """PFX-01, with a whole number of blocks and one more or less."""
        engine = make_engine()
        r = request(prompt=tuple((100 + 37 * i) % VOCAB for i in range(length)), max_tokens=8, logprobs=5)
        cold, warm = (run(engine, r)["r", 0] for _ in range(2))
        assert (cold.tokens, cold.logprobs) == (warm.tokens, warm.logprobs)
        assert cold.tokens == expected(r)
        assert cold.usage.cached_tokens == 0
        assert warm.usage.cached_tokens == (length - 1) // 16 * 16 < length

    def test_cache_report(self):
        engine = make_engine()
        r = request(prompt=40, max_tokens=1, cache_report=True)
        assert run(engine, r)["r", 0].last.cache_report == CacheReport(0, 0, "never_seen")
        assert run(engine, r)["r", 0].last.cache_report == CacheReport(32, None, "hit")
        other = request(prompt=(*range(10, 30), 7, *range(31, 50)), max_tokens=1, cache_report=True)
        assert run(engine, other)["r", 0].last.cache_report == CacheReport(16, 20, "other_token")
        assert run(engine, request(prompt=40, max_tokens=1))["r", 0].last.cache_report is None


class TestBadRequests:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"prompt": ()}, "prompt"),
            ({"prompt": (5, VOCAB)}, "prompt"),
            ({"prompt": (-1,)}, "prompt"),
            ({"temperature": 9.0}, "temperature"),
            ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
            ({"max_tokens": 10_000}, "max_tokens"),
        ],
    )
    def test_are_refused_at_once_and_leave_nothing(self, fields, param):
        engine = make_engine()
        with pytest.raises(BadRequest) as error:
            engine.add(request(**fields))
        assert error.value.param == param
        assert not engine.has_work()
        assert engine.stats().requests_total == 0

    def test_an_id_that_is_in_flight(self):
        engine = make_engine()
        engine.add(request())
        with pytest.raises(BadRequest, match="'r'"):
            engine.add(request())
        run(engine)
        assert run(engine, request())["r", 0].reason is not None


class TestSeeds:
    """Same seed, same text: alone or batched, cold or warm, preempted or not, whatever the neighbours ask."""

    def test_same_seed_same_text(self):
        r = request(prompt=30, temperature=1.0, seed=11, max_tokens=25, ignore_eos=True, n=2)
        wanted = [expected(r, i) for i in range(2)]
        neighbours = [request(f"x{i}", 11 * i + 5, temperature=1.5, n=2, seed=i, max_tokens=30) for i in range(4)]
        small = runner_with(num_blocks=20, block_size=4)
        engines = [make_engine(), make_engine(max_num_seqs=8), make_engine(small), make_engine(prefix_caching=False)]
        for engine in engines:
            for group in ([r], [*neighbours, r], [r]):
                outputs = run(engine, *group)
                assert [outputs["r", i].tokens for i in range(2)] == wanted
        assert engines[2].stats().preemptions_total > 0

    def test_a_negative_seed_is_a_seed(self):
        r = request(temperature=1.0, seed=-5, max_tokens=10)
        assert run(make_engine(), r)["r", 0].tokens == expected(r)

    def test_unseeded_requests_differ_also_in_one_batch(self):
        requests = [request(f"r{i}", temperature=1.0, n=2, max_tokens=10, ignore_eos=True) for i in range(4)]
        texts = [o.tokens for o in run(make_engine(max_num_seqs=8), *requests).values()]
        assert len(set(texts)) == 8


class TestAbort:
    """SCH-02, the engine's side: in every state, pages are free at once and no further compute is spent."""

    @pytest.mark.parametrize("steps", [0, 1, 2, 3, 8])
    @pytest.mark.parametrize("keep", [None, 2])
    def test_in_every_state(self, steps, keep):
        engine = make_engine(prefill_chunk=16)
        engine.add(request(prompt=40, ignore_eos=True))
        outputs: Outputs = {}
        for _ in range(steps):
            collect(outputs, engine.step())
        engine.abort("r", 0, keep) if keep else engine.abort("r")
        stats = engine.stats()
        assert stats.kv_blocks_used == stats.kv_blocks_cached
        assert (stats.requests_running, stats.queue_depth, stats.requests_active) == (0, 0, 0)
        launched = stats.steps_total
        while engine.has_work():
            collect(outputs, engine.step())
        assert engine.stats().steps_total == launched
        output = outputs["r", 0]
        kept = min(len(output.tokens), keep or 100)
        assert (output.reason, output.usage.completion_tokens) == ("abort", kept)
        engine.abort("r")
        assert not engine.has_work()

    @pytest.mark.parametrize("index", [None, 0, 1])
    def test_a_request_without_an_answer_while_its_only_step_is_under_way(self, index):
        engine = make_engine()
        engine.add(request(prompt=20, max_tokens=0, n=2))
        engine.step()
        engine.abort("r", index)
        outputs = run(engine)
        assert [outputs["r", i].reason == "abort" for i in range(2)] == [index in (None, i) for i in range(2)]

    def test_what_lies_past_a_stop_string_is_not_cached(self):
        r = request(prompt=16, max_tokens=100, ignore_eos=True)
        engine = make_engine()
        engine.add(r)
        outputs: Outputs = {}
        while len(outputs.get(("r", 0), ()) and outputs["r", 0].tokens) < 60:
            collect(outputs, engine.step())
        engine.abort("r", 0, keep=20)
        run(engine)
        again = request("again", (*r.prompt, *expected(r)[:60]), max_tokens=1)
        assert run(engine, again)["again", 0].usage.cached_tokens == 32  # of 36 tokens that count

    def test_ghosts_do_not_fill_the_engine(self):
        engine = make_engine(max_num_seqs=4)
        for i in range(0, 40, 4):
            for k in range(i, i + 4):
                engine.add(request(f"r{k}", 10, max_tokens=400, ignore_eos=True))
            engine.step()
            engine.step()
            for k in range(i, i + 4):
                engine.abort(f"r{k}")
        assert run(engine, request("last", max_tokens=3))["last", 0].reason in ("length", "stop")
        stats = engine.stats()
        assert (stats.requests_active, stats.queue_depth, stats.requests_aborted) == (0, 0, 40)


class TestTimeout:
    def test_running_and_waiting(self):
        now = [100.0]
        engine = make_engine(max_num_seqs=1, clock=lambda: now[0])
        engine.add(request("runs", timeout_s=5, ignore_eos=True))
        engine.add(request("waits", timeout_s=7, ignore_eos=True))
        engine.add(request("early", 3, timeout_s=2, arrival_s=99.0, ignore_eos=True))
        engine.add(request("none", 3, max_tokens=2, ignore_eos=True))
        outputs: Outputs = {}
        for second in range(100, 110):
            now[0] = float(second)
            for _ in range(3):
                collect(outputs, engine.step())
                engine.kv.check()
        ends = {key[0]: (o.reason, o.last.error) for key, o in outputs.items()}
        for name, seconds in (("runs", 5), ("waits", 7), ("early", 2)):
            assert ends[name] == ("timeout", f"The request took longer than its timeout of {seconds} s")
        assert ends["none"] == ("length", None)
        assert engine.stats().errors_total == 3

    def test_an_id_that_is_used_again_has_its_own_deadline(self):
        now = [0.0]
        engine = make_engine(clock=lambda: now[0])
        run(engine, request(timeout_s=5, max_tokens=1))
        engine.add(request(timeout_s=50, max_tokens=400, ignore_eos=True))
        now[0] = 10.0
        assert run(engine)["r", 0].reason == "length"


class TestFaults:
    """SCH-08: only the faulty request fails."""

    def good(self):
        return [request(f"good{i}", 7 + i, max_tokens=12, ignore_eos=True) for i in range(8)]

    def test_a_row_that_cannot_be_sampled(self):
        def bad_row(row: SampleRow) -> str | None:
            return "not a number" if row.params.seed == 666 and row.position > 20 else None

        runner = runner_with(faults=Faults(row=bad_row))
        engine = make_engine(runner, max_num_seqs=16)
        bad = request("bad", 18, max_tokens=12, seed=666, ignore_eos=True, n=2)
        outputs = run(engine, *self.good()[:4], bad, *self.good()[4:])
        for i in range(2):
            assert (outputs["bad", i].reason, outputs["bad", i].last.error) == ("error", "not a number")
            assert outputs["bad", i].tokens == expected(bad, i)[:3]
        for r in self.good():
            assert outputs[r.request_id, 0].tokens == expected(r)
        assert engine.stats().errors_total == 1
        runner.faults = Faults()
        after = run(engine, request("after", 18, max_tokens=3))["after", 0]
        assert after.usage.cached_tokens == 0  # nothing that the failed request computed is found again

    @pytest.mark.parametrize("where", ["forward", "sample", "wait"])
    @pytest.mark.parametrize("step", [0, 1, 5])
    def test_a_step_that_fails_ends_its_requests_and_the_loop_goes_on(self, where, step):
        """MEM-02: a device that is out of memory raises in a prefill or a decode."""
        runner = runner_with(faults=Faults(**{where: (step,)}))
        engine = make_engine(runner, max_num_seqs=4)
        outputs = run(engine, *self.good())
        ends = [outputs[f"good{i}", 0].reason for i in range(8)]
        assert ends == ["error"] * 4 + ["length"] * 4
        for r in self.good():
            output = outputs[r.request_id, 0]
            assert output.tokens == expected(r)[: len(output.tokens)]
            if output.reason == "error":
                assert output.last.error == f"The computation failed: DeviceError: {where} of step {step}"
        assert engine.stats().kv_blocks_used == engine.stats().kv_blocks_cached
        assert runner.violations == []
        assert run(engine, request("later", max_tokens=3))["later", 0].reason is not None


def test_nothing_of_a_request_outlives_it():
    """MEM-01: not even until the garbage collector comes."""
    engine = make_engine(runner_with(num_blocks=16))
    states = []
    gc.disable()
    try:
        for i in range(3):
            engine.add(request(f"r{i}", 100, n=2, max_tokens=5, cache_report=True))
            states.append(weakref.ref(engine._requests[f"r{i}"]))
        engine.step()
        engine.abort("r1")
        run(engine)
        assert [state() for state in states] == [None] * 3
    finally:
        gc.enable()


class TestCounters:
    def test_started_is_completed_plus_aborted_plus_failed(self):
        """MET-03."""
        engine = make_engine(runner_with(faults=Faults(row=lambda row: "bad" if row.params.seed == 666 else None)))
        outputs: Outputs = {}
        for i in range(5):
            engine.add(request(f"gone{i}", max_tokens=50, ignore_eos=True))
            collect(outputs, engine.step())
            collect(outputs, engine.step())
            engine.abort(f"gone{i}")
        for i in range(2):
            with pytest.raises(BadRequest):
                engine.add(request(f"refused{i}", ()))
        engine.add(request("bad", seed=666))
        engine.add(request("matched", n=2, max_tokens=50, ignore_eos=True))
        for i in range(3):
            engine.add(request(f"done{i}", 20, max_tokens=4))
        for _ in range(6):
            collect(outputs, engine.step())
        engine.abort("matched", 0, keep=1)  # a stop string: that is a completion
        engine.abort("matched", 1, keep=1)
        while engine.has_work():
            collect(outputs, engine.step())
        stats = engine.stats()
        assert stats.requests_total == 5 + 1 + 1 + 3
        assert (stats.requests_completed, stats.requests_aborted, stats.errors_total) == (4, 5, 1)
        assert stats.requests_active == 0
        assert stats.decode_tokens_total == sum(len(o.tokens) for o in outputs.values())

    def test_prefix_cache(self):
        engine = make_engine()
        run(engine, request(prompt=40, max_tokens=1))
        run(engine, request(prompt=40, max_tokens=1, n=2))
        stats = engine.stats()
        assert (stats.prefix_cache_hits, stats.prefix_tokens_saved) == (1, 32)
        assert stats.prefill_tokens_total == 40 + 8

    def test_times(self):
        now = [0.0]
        engine = make_engine(clock=lambda: now[0])
        engine.add(request(max_tokens=5, ignore_eos=True, arrival_s=-1.0))
        while engine.has_work():
            engine.step()
            now[0] += 0.5
        stats = engine.stats()
        assert stats.ttft_ms_p50 == pytest.approx(1500)  # queueing before the engine included
        assert stats.tpot_ms_p95 == pytest.approx(500)
        assert stats.last_step_age_s == pytest.approx(0.5)


class TestOverlap:
    def test_the_next_step_is_launched_while_one_runs(self):
        runner = runner_with()
        run(make_engine(runner), request(max_tokens=3, ignore_eos=True))
        assert runner.events == [
            *("forward 0", "start 0", "sample 0"),
            *("forward 1", "start 1", "wait 0", "sample 1"),
            *("forward 2", "start 2", "wait 1", "sample 2"),
            "wait 2",
        ]
        assert [len(b.late_tokens) for b in runner.batches] == [0, 1, 1]

    @pytest.mark.parametrize("sequences", [1, 16])
    def test_a_step_of_5_ms_leaves_195_steps_a_second(self, sequences):
        clock = VirtualClock()
        runner = runner_with(num_blocks=400, step_s=0.005, now=clock.now, sleep=clock.sleep)
        engine = make_engine(runner, max_num_seqs=sequences, max_model_len=2000)
        for i in range(sequences):
            engine.add(request(f"r{i}", 5 + i, ignore_eos=True))
        for _ in range(5):
            engine.step()
        start = clock.now()
        for _ in range(200):
            engine.step()
        assert 195 <= 200 / (clock.now() - start) <= 201

    def test_a_token_past_a_stop_is_never_shown_counted_or_cached(self):
        plain = expected(request(prompt=8, max_tokens=40, ignore_eos=True))
        r = request(prompt=8, max_tokens=40, ignore_eos=True, stop_token_ids=(plain[7],))
        runner = runner_with()
        engine = make_engine(runner)
        output = run(engine, r)["r", 0]
        assert len(output.tokens) == output.usage.completion_tokens == engine.stats().decode_tokens_total == 8
        assert runner.batches[-1].positions[-1] == 15  # the stop token's own KV was under way: it fills the block
        assert engine.stats().kv_blocks_used == 0
