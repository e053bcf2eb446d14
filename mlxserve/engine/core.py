"""The synchronous step loop: launch step N + 1, wait for step N, commit it, sample step N + 1.

Knows token ids and the runner's Protocol; nothing of text, threads, HTTP or arrays. What is decided where: the
scheduler says which tokens are computed, ``batch`` puts them in the runner's form, ``stop`` says when a sequence ends.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from mlxserve.config import EngineConfig
from mlxserve.engine.batch import Sampling, build_batch, build_sampling
from mlxserve.engine.interfaces import Forward, ModelRunner, Pending, Sampled
from mlxserve.engine.kv_manager import KVManager, PagedKVManager
from mlxserve.engine.metrics import Metrics
from mlxserve.engine.observe import snapshot, stats
from mlxserve.engine.scheduler import Chunk, Plan, Scheduler
from mlxserve.engine.sequence import RequestState, Sequence, Status, make_choices
from mlxserve.engine.stop import finish_reason, length_limit, stop_ids
from mlxserve.errors import BadRequest
from mlxserve.types import Delta, FinishReason, Request, Snapshot, Stats, TokenLogprob, Usage

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """A step under way."""

    plan: Plan
    sampling: Sampling
    pending: Pending


class Engine:
    """One model's engine. One thread calls it; ``stats`` may be called from any.

    A step that the device fails ends the requests in it with "error" and no other. Steps are launched one ahead, so a
    sequence that stops may have computed one token more: it is never sampled, shown, counted or cached.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        *,
        eos_token_ids: Collection[int],
        max_model_len: int,
        vocab_size: int,
        kv: KVManager | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config.check_pool(runner.num_blocks)
        self._runner = runner
        self._config = config
        self._eos = frozenset(eos_token_ids)
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._clock = clock
        self.kv = kv or PagedKVManager(runner.num_blocks, runner.block_size, config.prefix_caching)
        self._metrics = Metrics(clock())
        self._scheduler = Scheduler(self.kv, config, self._metrics)
        self._requests: dict[str, RequestState] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap; may name requests that have finished
        self._numbers = 0  # sequences that ever arrived
        self._flight: _Flight | None = None
        self._outbox: list[Delta] = []

    def add(self, request: Request) -> None:
        """Queues a request. Raises BadRequest when a parameter is out of range or it can never run."""
        request.params.check(self._vocab_size)
        limit = length_limit(request, self._max_model_len, self._runner.num_blocks * self._runner.block_size)
        if not 0 <= min(request.prompt) <= max(request.prompt) < self._vocab_size:
            wrong = next(t for t in request.prompt if not 0 <= t < self._vocab_size)
            raise BadRequest(
                f"The prompt holds token {wrong}, but token ids are from 0 to {self._vocab_size - 1}", param="prompt"
            )
        if request.request_id in self._requests:
            raise BadRequest(f"A request with the id {request.request_id!r} is already in flight", param="request_id")
        now = self._clock()
        state = RequestState(request, now if request.arrival_s is None else request.arrival_s)
        state.choices = make_choices(
            state, first_number=self._numbers, limit=limit, stop_ids=stop_ids(request.params, self._eos)
        )
        self._numbers += len(state.choices)
        state.live = len(state.choices)
        state.held = state.choices[1:]
        self._requests[request.request_id] = state
        self._metrics.requests_total += 1
        if request.timeout_s is not None:
            heapq.heappush(self._deadlines, (state.arrival_s + request.timeout_s, request.request_id))
        self._scheduler.add(state.choices[0])

    def abort(
        self, request_id: str, index: int | None = None, keep: int | None = None, reason: FinishReason = "abort"
    ) -> None:
        """Ends a request, or one choice of it, and frees its blocks at once. ``keep``: tokens of that choice that count
        (a stop string matched there). Unknown or finished requests are ignored."""
        state = self._requests.get(request_id)
        if state is None:
            return
        for seq in state.choices:
            if seq.status is not Status.FINISHED and index in (None, seq.index):
                self._finish(seq, reason, keep=keep)

    def close(self) -> None:
        """Ends the runner. Idempotent."""
        self._runner.close()

    def has_work(self) -> bool:
        return bool(self._requests or self._outbox or self._flight)

    def step(self) -> list[Delta]:
        """Launches one step and commits the one before it; [] when there is nothing to tell."""
        now = self._clock()
        self._expire(now)
        plan = self._scheduler.schedule()
        previous, self._flight = self._flight, None
        forward = self._launch(plan, previous, now) if plan.chunks else None
        if previous is not None:
            self._land(previous)
        if forward is not None:
            self._sample(plan, forward)
        self._metrics.last_step_s = self._clock()
        deltas, self._outbox = self._outbox, []
        return deltas

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heapq.heappop(self._deadlines)
            state = self._requests.get(request_id)
            timeout = state.request.timeout_s if state is not None else None
            if state is not None and timeout is not None and state.arrival_s + timeout <= deadline:
                error = f"The request took longer than its timeout of {timeout:g} s"
                self._finish_all([state], "timeout", error)

    def _launch(self, plan: Plan, previous: _Flight | None, now: float) -> Forward | None:
        batch = build_batch(plan, self._runner.block_size, self._config.deterministic)
        self._metrics.step(now, len(plan.chunks))
        try:
            forward = self._runner.forward(batch, previous.pending if previous is not None else None)
            forward.start()
        except Exception as error:  # whatever a device raises is this batch's failure, not the engine's
            self._fail(plan, error)
            return None
        return forward

    def _sample(self, plan: Plan, forward: Forward) -> None:
        sampling = build_sampling(plan)
        try:
            pending = self._runner.sample(forward, sampling.inputs)
        except Exception as error:  # as in _launch
            self._fail(plan, error)
            return
        self._flight = _Flight(plan, sampling, pending)

    def _fail(self, plan: Plan, error: Exception) -> None:
        """Ends every request of a step that the device could not do."""
        _log.error("A step failed", exc_info=error)
        message = f"The computation failed: {type(error).__name__}: {error}"
        self._finish_all([chunk.seq.state for chunk in plan.chunks], "error", message)

    def _finish_all(self, states: Iterable[RequestState], reason: FinishReason, error: str) -> None:
        for state in states:
            for seq in state.choices:
                if seq.status is not Status.FINISHED:
                    self._finish(seq, reason, error=error)

    def _land(self, flight: _Flight) -> None:
        """Waits for a step and commits it: publishes blocks, appends tokens, ends what has ended."""
        try:
            sampled = flight.pending.wait()
        except Exception as error:  # as in _launch
            self._fail(flight.plan, error)
            return
        for state, score in zip(flight.sampling.scored, sampled.scores, strict=True):
            state.prompt_scores.append(score)
        self._metrics.prefill_tokens += flight.plan.prefill_tokens
        publish = self.kv.publish
        for chunk in flight.plan.chunks:
            seq = chunk.seq
            if seq.status is Status.RUNNING:  # else preempted or aborted since
                seq.computed = computed = chunk.start + chunk.length
                if computed >= seq.publish_at:
                    publish(seq)
            if chunk.forks or not chunk.samples:
                self._land_prompt(chunk)
        self._append(flight.sampling.sequences, sampled)

    def _land_prompt(self, chunk: Chunk) -> None:
        end = chunk.start + chunk.length
        for fork in chunk.forks:
            if fork.status is Status.RUNNING:
                fork.computed = end
                self.kv.publish(fork)
        for choice in (chunk.seq, *chunk.forks):
            if end == choice.limit and choice.status is Status.RUNNING:  # only the prompt's scores were asked for
                self._finish(choice, "length")

    def _append(self, sequences: list[Sequence], sampled: Sampled) -> None:
        now = self._clock()
        appended = 0
        outbox = self._outbox
        for row, (seq, tokens, logprobs) in enumerate(zip(sequences, sampled.tokens, sampled.logprobs, strict=True)):
            if seq.status is Status.FINISHED:
                continue
            if row in sampled.errors:
                self._finish_all([seq.state], "error", sampled.errors[row])
                continue
            (token,) = tokens
            seq.late_row = -1
            seq.append(token)
            appended += 1
            state = seq.state
            if state.first_token_s is None:
                state.first_token_s = now
                self._metrics.first_token(now - state.arrival_s)
            reason = finish_reason(seq, token)
            if reason is not None:
                self._finish(seq, reason, tokens, logprobs)
            else:
                outbox.append(self._delta(seq, tokens, logprobs))
        self._metrics.decoded(now, appended)

    def _delta(self, seq: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...] | None = None) -> Delta:
        state = seq.state
        if seq.params.prompt_logprobs is None or state.scores_sent or len(state.prompt_scores) < seq.num_prompt:
            return Delta(request_id=seq.request_id, index=seq.index, token_ids=tokens, logprobs=logprobs)
        state.scores_sent = True
        return Delta(
            request_id=seq.request_id,
            index=seq.index,
            token_ids=tokens,
            logprobs=logprobs,
            prompt_logprobs=tuple(state.prompt_scores),
        )

    def _finish(
        self,
        seq: Sequence,
        reason: FinishReason,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] | None = None,
        *,
        keep: int | None = None,
        error: str | None = None,
    ) -> None:
        """Ends a choice in whatever state it is; its closing delta carries ``tokens``."""
        state = seq.state
        counted = seq.num_output if keep is None else min(keep, seq.num_output)
        # What a failed computation has written may be wrong: none of it is to be found in the cache.
        self._scheduler.finish(seq, kept=0 if reason == "error" else seq.num_prompt + counted)
        delta = self._delta(seq, tokens, logprobs)
        self._outbox.append(
            replace(
                delta,
                finish_reason=reason,
                usage=Usage(seq.num_prompt, counted, state.cached_tokens or 0),
                cache_report=state.cache_report,
                error=error,
            )
        )
        self._metrics.choice_done(seq, reason, keep, self._clock())
        state.live -= 1
        if not state.live:
            state.choices = []  # no cycle is left, so that nothing of a request outlives it
            del self._requests[seq.request_id]

    def stats(self) -> Stats:
        return stats(self._scheduler, self.kv, self._metrics, len(self._requests), self._clock())

    def snapshot(self) -> Snapshot:
        """What is held between two steps; called by the engine's thread only."""
        return snapshot(self._scheduler, self.kv, self.stats())
