"""Scheduler, KV manager and core under every interleaving that hypothesis finds, against a plain reference.

HYPOTHESIS_PROFILE=soak runs forty times as many examples.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxserve.config import EngineConfig
from mlxserve.engine.core import Engine
from mlxserve.engine.kv_manager import KVManager, PagedKVManager, block_digest, root_digest
from mlxserve.errors import BadRequest
from mlxserve.types import Request, SamplingParams
from tests.engine.support import Outputs, collect
from tests.fakes import ContiguousKVManager, FakeRunner, Faults, reference

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
VOCAB = 60
EOS = (1, 2)


class EngineMachine(RuleBasedStateMachine):
    """Requests with few distinct prompts, so that prefixes are shared, in pools that are nearly always too small."""

    @initialize(
        seqs=st.integers(1, 5),
        block_size=st.sampled_from((1, 2, 4, 8)),
        spare_blocks=st.integers(0, 24),
        chunk=st.integers(1, 12),
        spare_budget=st.integers(0, 12),
        caching=st.booleans(),
        policy=st.sampled_from(("fifo", "priority")),
        contiguous=st.sampled_from((False, False, False, True)),
        max_len=st.integers(12, 60),
    )
    def start(self, seqs, block_size, spare_blocks, chunk, spare_budget, caching, policy, contiguous, max_len):
        blocks = 2 * seqs + spare_blocks
        self.now = 0.0
        self.max_len = min(max_len, blocks * block_size)
        self.runner = FakeRunner(num_blocks=blocks, block_size=block_size, vocab_size=VOCAB)
        self.config = EngineConfig(
            max_num_seqs=seqs,
            prefill_chunk=chunk,
            max_num_batched_tokens=seqs + chunk + spare_budget,
            block_size=block_size,
            prefix_caching=caching,
            schedule_policy=policy,
        )
        self.caching = caching and not contiguous
        self.kv: KVManager = (
            ContiguousKVManager(blocks, block_size) if contiguous else PagedKVManager(blocks, block_size, caching)
        )
        self.engine = Engine(
            self.runner,
            self.config,
            eos_token_ids=EOS,
            max_model_len=max_len,
            vocab_size=VOCAB,
            kv=self.kv,
            clock=lambda: self.now,
        )
        self.requests: dict[str, Request] = {}
        self.wanted: dict[tuple[str, int], tuple[int, ...]] = {}
        self.keeps: dict[tuple[str, int], int | None] = {}
        self.outputs: Outputs = {}
        self.contents: dict[bytes, tuple[int, tuple[int, ...]]] = {}  # what a published block must hold

    @rule(
        base=st.integers(0, 1),
        length=st.integers(1, 40),
        tail=st.integers(0, 2),
        max_tokens=st.none() | st.integers(0, 20),
        min_tokens=st.integers(0, 4),
        n=st.sampled_from((1, 1, 1, 2, 3, 7)),
        seed=st.integers(0, 3),
        temperature=st.sampled_from((0.0, 1.0)),
        penalty=st.sampled_from((0.0, 0.0, 0.5)),
        repetition=st.sampled_from((1.0, 1.0, 1.3)),
        prompt_logprobs=st.sampled_from((None, None, None, 1)),
        logprobs=st.sampled_from((None, 2)),
        ignore_eos=st.booleans(),
        salt=st.sampled_from(("", "", "b")),
        priority=st.integers(-1, 1),
        timeout_s=st.sampled_from((None, None, None, 3.0)),
    )
    def add(self, base, length, tail, salt, priority, timeout_s, max_tokens, min_tokens, penalty, repetition, **params):
        prompt = tuple((7 * i + base) % VOCAB for i in range(length)) + tuple(range(tail))
        request = Request(
            request_id=f"r{len(self.requests)}",
            prompt=prompt,
            params=SamplingParams(
                max_tokens=max_tokens,
                min_tokens=min_tokens if max_tokens is None else min(min_tokens, max_tokens),
                frequency_penalty=penalty,
                repetition_penalty=repetition,
                **params,
            ),
            salt=salt,
            priority=priority,
            timeout_s=timeout_s,
            cache_report=True,
        )
        fits = len(prompt) + (1 if max_tokens is None else max_tokens) <= self.max_len
        try:
            self.engine.add(request)
        except BadRequest:
            assert not fits
            return
        assert fits
        self.requests[request.request_id] = request
        for index in range(request.params.n):
            wanted = reference(request, index, vocab_size=VOCAB, eos_token_ids=EOS, limit=self.max_len)
            self.wanted[request.request_id, index] = wanted
            self._expect_blocks(prompt, wanted, salt)

    def _expect_blocks(self, prompt: tuple[int, ...], output: tuple[int, ...], salt: str) -> None:
        """The last token's KV is never computed, so no block that holds it is published."""
        tokens = prompt + output[:-1]
        size, digest = self.runner.block_size, root_digest(salt)
        for start in range(0, len(tokens) // size * size, size):
            block = tokens[start : start + size]
            digest = block_digest(digest, b"".join(t.to_bytes(4, "little") for t in block))
            self.contents[digest] = (start, block)

    @precondition(lambda self: self.engine.has_work())
    @rule()
    def step(self):
        self.steps(1)

    @precondition(lambda self: self.engine.has_work())
    @rule(times=st.integers(2, 12))
    def steps(self, times):
        for _ in range(times):
            before = len(self.runner.batches)
            collect(self.outputs, self.engine.step())
            self.engine.kv.check()
            for batch in self.runner.batches[before:]:
                assert len(batch.tokens) <= self.config.max_num_batched_tokens
                assert len(batch.block_tables) <= self.config.max_num_seqs

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 100), choice=st.none() | st.integers(0, 6), keep=st.none() | st.integers(0, 6))
    def abort(self, which, choice, keep):
        request_id = f"r{which % len(self.requests)}"
        if (request_id, choice) not in self.wanted:
            choice = keep = None
        self.engine.abort(request_id, choice, keep)
        for index in range(self.requests[request_id].params.n):
            if choice in (None, index):
                self.keeps.setdefault((request_id, index), keep)  # what is aborted again has finished

    @precondition(lambda self: self.requests)
    @rule(where=st.sampled_from(("forward", "sample", "wait", "row")), after=st.integers(0, 3), which=st.integers(0, 9))
    def plant_fault(self, where, after, which):
        if where == "row":
            params = self.requests[f"r{which % len(self.requests)}"].params
            self.runner.faults = Faults(row=lambda row: "not a number" if row.params is params else None)
        else:
            self.runner.faults = Faults(**{where: (len(self.runner.batches) + after,)})

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def published_blocks_hold_what_they_say(self):
        if not isinstance(self.kv, PagedKVManager):
            return
        size = self.runner.block_size
        for digest, block in self.kv.index().items():
            start, tokens = self.contents[digest]
            stored = self.runner.store[block * size : (block + 1) * size]
            assert stored == [(start + i, token) for i, token in enumerate(tokens)]

    @invariant()
    def the_runner_saw_no_violation(self):
        assert self.runner.violations == []

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.runner.faults = Faults()
        for _ in range(20_000):
            if not self.engine.has_work():
                break
            collect(self.outputs, self.engine.step())
            self.engine.kv.check()
        assert not self.engine.has_work(), "the queue is wedged"
        self.the_runner_saw_no_violation()
        self.published_blocks_hold_what_they_say()
        assert self.outputs.keys() == self.wanted.keys(), "a choice never ended"
        for key in self.wanted:
            self._check_output(*key)
        self._check_counters()

    def _check_output(self, request_id: str, index: int) -> None:
        request, output = self.requests[request_id], self.outputs[request_id, index]
        wanted = self.wanted[request_id, index]
        if output.reason in ("stop", "length"):
            assert output.tokens == wanted
            assert output.reason == ("stop" if wanted and self._stops(request, wanted[-1]) else "length")
        else:
            assert output.tokens == wanted[: len(output.tokens)]
        keep = self.keeps.get((request_id, index)) if output.reason == "abort" else None
        assert output.usage.completion_tokens == min(len(output.tokens), 1000 if keep is None else keep)
        assert output.usage.cached_tokens <= len(request.prompt) - 1
        if request.params.logprobs is not None:
            assert [p.token_id for p in output.logprobs] == list(output.tokens)
        first = [d.prompt_logprobs for i in range(request.params.n) for d in self.outputs[request_id, i].deltas]
        scores = [s for s in first if s is not None]
        if request.params.prompt_logprobs is None:
            assert not scores
        elif any(self.outputs[request_id, i].tokens for i in range(request.params.n)):
            assert len(scores) == 1
            assert tuple(s and s.token_id for s in scores[0]) == (None, *request.prompt[1:])

    @staticmethod
    def _stops(request: Request, token: int) -> bool:
        return not request.params.ignore_eos and token in EOS

    def _check_counters(self) -> None:
        stats = self.engine.stats()
        ended = stats.requests_completed + stats.requests_aborted + stats.errors_total
        assert stats.requests_total == ended == len(self.requests)
        assert stats.kv_blocks_used == stats.kv_blocks_cached
        assert self.caching or not stats.kv_blocks_used
        assert (stats.requests_active, stats.requests_running, stats.queue_depth) == (0, 0, 0)
        assert stats.decode_tokens_total == sum(len(o.tokens) for o in self.outputs.values())


EngineMachine.TestCase.settings = settings(
    max_examples=20_000 if SOAK else 500, stateful_step_count=50, deadline=None, print_blob=True
)


@pytest.mark.timeout(0 if SOAK else 120)
class TestEngineMachine(EngineMachine.TestCase):
    pass
