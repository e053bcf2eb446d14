"""Continuous batching: which tokens of which sequences the next step computes.

Knows lengths, budgets and whether blocks could be had; nothing of token ids, devices or what was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxserve.config import EngineConfig
from mlxserve.engine.interfaces import PageCopy
from mlxserve.engine.kv_manager import KVManager
from mlxserve.engine.metrics import Metrics
from mlxserve.engine.sequence import Sequence, Status
from mlxserve.engine.waiting import POLICIES, WaitingQueue


class Chunk:
    """``length`` tokens of a sequence from position ``start``; a decode is a chunk of one token."""

    __slots__ = ("forks", "length", "samples", "seq", "start")

    def __init__(
        self, seq: Sequence, start: int, length: int, samples: bool = True, forks: tuple[Sequence, ...] = ()
    ) -> None:
        self.seq = seq
        self.start = start
        self.length = length
        self.samples = samples  # the token after the chunk is sampled
        self.forks = forks  # further choices that sample from the same logits


@dataclass(slots=True)
class Plan:
    """One step's work. ``copies`` are done before anything is written."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    prefill_tokens: int = 0


class Scheduler:
    """Spends one token budget a step: decodes, then chunks of running prefills, then admissions in the queue's order.

    A prefill allocates for all its tokens when it is admitted, so only decodes run out of blocks. The configuration
    keeps the budget at least a decode of every sequence and a prefill chunk, so that neither starves the other.
    """

    def __init__(self, kv: KVManager, config: EngineConfig, metrics: Metrics) -> None:
        self._kv = kv
        self._config = config
        self._metrics = metrics
        self.running: list[Sequence] = []  # in order of admission
        self.waiting = WaitingQueue(POLICIES[config.schedule_policy])
        self._prefilling = 0  # how many of ``running`` have prompt tokens to schedule
        self._copies: list[PageCopy] = []  # for forks of the last plan
        self._refused: tuple[int, int] | None = None  # number of the queue's head, and the blocks that were too few

    def add(self, seq: Sequence) -> None:
        self.waiting.push(seq)

    def schedule(self) -> Plan:
        """The next step; no chunks when there is nothing to do. Moves ``scheduled`` and ``target`` of what it plans."""
        plan = Plan(copies=self._copies)
        self._copies = []
        preemptions = self._metrics.preemptions
        budget = self._config.max_num_batched_tokens - self._decode(plan)
        if self._prefilling:
            for seq in list(self.running):
                if seq.prefilling and budget > 0:
                    budget -= self._prefill(plan, seq, budget)
        if self._metrics.preemptions == preemptions:
            self._admit(plan, budget)
        assert plan.chunks or self.running or not self.waiting, "sequences wait and nothing runs"
        return plan

    def _decode(self, plan: Plan) -> int:
        """Plans one token of every sequence that has one due; returns how many. Preempts the newest sequences when
        blocks run out; these have not been planned yet, so nothing is taken back."""
        chunks = plan.chunks
        append = chunks.append
        for seq in self.running:  # preemption only ever shortens it behind ``seq``
            start = seq.scheduled
            target = seq.target
            if target >= seq.limit or seq.prefilling:
                continue
            if start >= seq.capacity and not self._make_room(seq):
                break
            append(Chunk(seq, start, 1))
            seq.scheduled = target
            seq.target = target + 1
        return len(chunks)

    def _make_room(self, seq: Sequence) -> bool:
        """A block for one more token. False when ``seq`` itself was the newest and had to give way."""
        while not self._kv.allocate(seq, seq.scheduled + 1):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._metrics.preemptions += 1
        self._leave(seq)
        seq.status = Status.WAITING
        self.waiting.push(seq, front=True)

    def _leave(self, seq: Sequence) -> None:
        """Takes a running sequence's place and blocks away."""
        if self.running[-1] is seq:
            self.running.pop()
        else:
            self.running.remove(seq)
        if seq.prefilling:
            self._prefilling -= 1
            seq.prefilling = False
        self._kv.free(seq)
        seq.scheduled = seq.computed = 0

    def _prefill(self, plan: Plan, seq: Sequence, budget: int) -> int:
        """Plans the next chunk of a prompt (or of what has to be recomputed); returns its length."""
        start = seq.scheduled
        length = min(seq.target - start, self._config.prefill_chunk, budget)
        seq.scheduled = start + length
        chunk = Chunk(seq, start, length, samples=False)
        plan.chunks.append(chunk)
        plan.prefill_tokens += length
        if seq.scheduled == seq.target:
            seq.prefilling = False
            self._prefilling -= 1
            chunk.forks = self._fork(seq)
            chunk.samples = seq.limit > seq.num_prompt
            if chunk.samples:
                for choice in (seq, *chunk.forks):
                    choice.target += 1
        return length

    def _fork(self, parent: Sequence) -> tuple[Sequence, ...]:
        """Starts the choices that were held back; those that find no place are queued and find the prompt cached."""
        forks = []
        for child in parent.state.held:
            copies = None
            if len(self.running) < self._config.max_num_seqs:
                copies = self._kv.fork(parent, child)
            if copies is None:
                self.waiting.push(child, front=True)
                continue
            self._copies += copies
            child.status = Status.RUNNING
            child.scheduled = parent.scheduled
            child.computed = parent.computed
            self.running.append(child)
            forks.append(child)
        parent.state.held = []
        return tuple(forks)

    def _admit(self, plan: Plan, budget: int) -> None:
        while budget > 0 and self.waiting and len(self.running) < self._config.max_num_seqs:
            seq = self.waiting.head()
            if self._refused == (seq.number, self._kv.available) and self.running:
                return
            hit = self._kv.match(seq)
            # One block for each that will grow: or else the newcomer is preempted a moment later.
            growing = sum(other.capacity < other.limit - 1 for other in self.running)
            if not self._kv.allocate(seq, len(seq.tokens), hit, reserve=growing):
                self._refused = (seq.number, self._kv.available)
                return
            self.waiting.remove(seq)
            if seq.state.cached_tokens is None:
                seq.state.cached_tokens = hit.tokens
                self._metrics.admitted(hit.tokens)
                if seq.state.request.cache_report:
                    seq.state.cache_report = self._kv.explain(seq, hit)
            seq.status = Status.RUNNING
            seq.scheduled = seq.computed = hit.tokens
            seq.target = len(seq.tokens)
            seq.prefilling = True
            self._prefilling += 1
            self.running.append(seq)
            budget -= self._prefill(plan, seq, budget)

    def finish(self, seq: Sequence, kept: int) -> None:
        """Frees everything at once, in whatever state the sequence is; only its first ``kept`` tokens stay cached."""
        assert seq.status is not Status.FINISHED, f"{seq.request_id} finished twice"
        was_running = seq.status is Status.RUNNING
        held = seq.state.held
        if was_running:
            self._kv.truncate(seq, min(kept, seq.computed))
            self._leave(seq)
        elif not self.waiting.remove(seq):
            held.remove(seq)
            held = []
        seq.status = Status.FINISHED
        if held:  # another choice takes over the prompt, in the same place
            self.waiting.push(held.pop(0), front=was_running)
