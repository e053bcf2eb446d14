"""Stand-ins for the world around the engine, and the plain reference that they are held to.

``FakeRunner`` keeps token ids where a model keeps K and V, and derives every token from all the tokens that it reads
back through the block table: a wrong slot, table, page copy or position shows as a wrong token.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from mlxserve.engine.interfaces import ForwardBatch, PageCopy, Pending, Sampled, SampleInputs, SampleRow
from mlxserve.engine.kv_manager import PrefixHit
from mlxserve.engine.sequence import Sequence
from mlxserve.types import CacheReport, Request, SamplingParams, TokenLogprob


def choose(
    context: array[int],
    vocab_size: int,
    params: SamplingParams,
    *,
    seed: int,
    choice: int,
    position: int,
    banned: Collection[int] = (),
    counts: Mapping[int, int] | None = None,
    prompt_ids: Collection[int] = (),
) -> int:
    """The fake model's next token: any change of an argument that a sampler would see changes it."""
    noise: tuple[object, ...] = () if params.temperature == 0 else (seed, choice, params.temperature)
    if params.presence_penalty or params.frequency_penalty:
        noise += (sorted((counts or {}).items()),)
    if params.repetition_penalty != 1:
        noise += (sorted((counts or {}).keys()), sorted(prompt_ids))
    token = crc32(repr((position, noise)).encode(), crc32(context.tobytes())) % vocab_size
    while token in banned:
        token = (token + 1) % vocab_size
    return token


def logprob(context: array[int], token: int, top: int) -> TokenLogprob:
    """The fake model's log-probability of ``token`` after ``context``."""
    value = crc32(context.tobytes())
    return TokenLogprob(token, -(value % 1000) / 100, tuple((value % 97 + i, -float(i)) for i in range(top)))


def reference(
    request: Request,
    index: int,
    *,
    vocab_size: int,
    eos_token_ids: Collection[int],
    limit: int,
    seed: int | None = None,
) -> tuple[int, ...]:
    """What a choice generates, computed without batches, pages or caches. ``limit``: the longest possible sequence."""
    params = request.params
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    tokens = array("i", request.prompt)
    if params.max_tokens is not None:
        limit = min(limit, len(tokens) + params.max_tokens)
    counts: dict[int, int] = {}
    seed = seed if params.seed is None else params.seed & 0xFFFF_FFFF_FFFF_FFFF
    while len(tokens) < limit:
        output = len(tokens) - len(request.prompt)
        token = choose(
            tokens,
            vocab_size,
            params,
            seed=seed or 0,
            choice=index,
            position=len(tokens),
            banned=stops if output < params.min_tokens else (),
            counts=counts,
            prompt_ids=set(request.prompt),
        )
        tokens.append(token)
        counts[token] = counts.get(token, 0) + 1
        if token in stops:
            break
    return tuple(tokens[len(request.prompt) :])


class DeviceError(Exception):
    """What a planted fault raises."""


@dataclass
class Faults:
    """What goes wrong, and in which step (the first is 0)."""

    forward: Collection[int] = ()
    sample: Collection[int] = ()
    wait: Collection[int] = ()
    row: Callable[[SampleRow], str | None] = lambda row: None


class VirtualClock:
    """Time that passes with this thread's computing and with waiting for the device, however busy the machine is."""

    def __init__(self) -> None:
        self._waited_s = 0.0

    def now(self) -> float:
        return time.thread_time() + self._waited_s

    def sleep(self, seconds: float) -> None:
        self._waited_s += seconds


@dataclass
class FakeForward:
    runner: FakeRunner
    step: int
    contexts: list[array[int]]  # of each logit row, up to and including its position
    started: bool = False

    def start(self) -> None:
        assert not self.started
        self.started = True
        self.runner.events.append(f"start {self.step}")
        self.runner.ready_s = max(self.runner.now(), self.runner.ready_s) + self.runner.step_s


@dataclass
class FakePending:
    runner: FakeRunner
    step: int
    sampled: Sampled
    ready_s: float
    waited: bool = False

    def wait(self) -> Sampled:
        assert not self.waited
        self.waited = True
        self.runner.events.append(f"wait {self.step}")
        if self.runner.step_s:
            self.runner.sleep(max(0.0, self.ready_s - self.runner.now()))
        if self.step in self.runner.faults.wait:
            raise DeviceError(f"wait of step {self.step}")
        return self.sampled


@dataclass
class FakeRunner:
    """A model runner over a paged store of (position, token). ``step_s``: how long the device takes for a step."""

    num_blocks: int = 64
    block_size: int = 16
    vocab_size: int = 1000
    step_s: float = 0.0
    faults: Faults = field(default_factory=Faults)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self.store: list[tuple[int, int]] = [(-1, -1)] * (self.num_blocks * self.block_size)
        self.ready_s = 0.0
        self.events: list[str] = []  # calls, in order
        self.batches: list[ForwardBatch] = []
        self.violations: list[str] = []  # of the contract, or reads of what was never written
        self.closed = False
        self._last: FakePending | None = None
        self._unsampled: FakeForward | None = None

    def _expect(self, condition: bool, what: str) -> None:
        if not condition:
            self.violations.append(f"step {len(self.batches) - 1}: {what}")

    def forward(self, batch: ForwardBatch, prev: Pending | None) -> FakeForward:
        step = len(self.batches)
        self.batches.append(batch)
        self.events.append(f"forward {step}")
        if step in self.faults.forward:
            raise DeviceError(f"forward of step {step}")
        self._expect(not self.closed, "forward after close")
        tokens = array("i", batch.tokens)
        if batch.late_tokens:
            self._expect(prev is not None and prev is self._last, "late tokens of another step than the previous one")
            assert isinstance(prev, FakePending)
            for flat, row in batch.late_tokens:
                self._expect(tokens[flat] == 0, "a late token has a value")
                (tokens[flat],) = prev.sampled.tokens[row]
        self._check(batch)
        size = self.block_size
        pages = [self.store[c.source * size : (c.source + 1) * size] for c in batch.page_copies]
        for copy, page in zip(batch.page_copies, pages, strict=True):
            self.store[copy.target * size : (copy.target + 1) * size] = page
        for slot, position, token in zip(batch.slots, batch.positions, tokens, strict=True):
            self.store[slot] = (position, token)
        return FakeForward(self, step, [self._context(batch, row) for row in batch.logit_rows])

    def _check(self, batch: ForwardBatch) -> None:
        starts, size = batch.query_starts, self.block_size
        count = len(batch.block_tables)
        self._expect(len(starts) == count + 1 == len(batch.context_lens) + 1, "lengths differ")
        self._expect(len(set(batch.slots)) == len(batch.slots) == starts[-1], "a slot is written twice")
        self._expect(list(batch.logit_rows) == sorted(set(batch.logit_rows)), "logit rows are not ascending")
        for s in range(count):
            end = batch.context_lens[s]
            positions = range(end - (starts[s + 1] - starts[s]), end)
            self._expect(len(positions) > 0, "a sequence has no tokens")
            table = batch.block_tables[s]
            self._expect(list(batch.positions[starts[s] : starts[s + 1]]) == list(positions), "wrong positions")
            slots = [table[p // size] * size + p % size for p in positions]
            self._expect(list(batch.slots[starts[s] : starts[s + 1]]) == slots, "slots and table differ")

    def _context(self, batch: ForwardBatch, flat: int) -> array[int]:
        """The tokens that position of ``flat`` attends to, read back through its sequence's block table."""
        sequence = next(s for s in range(len(batch.block_tables)) if flat < batch.query_starts[s + 1])
        table, size = batch.block_tables[sequence], self.block_size
        length = batch.positions[flat] + 1
        read: list[tuple[int, int]] = []
        for block in table[: -(-length // size)]:
            read += self.store[block * size : (block + 1) * size]
        self._expect([p for p, _ in read[:length]] == list(range(length)), "a slot holds another position")
        return array("i", (token for _, token in read[:length]))

    def sample(self, forward: FakeForward, inputs: SampleInputs) -> FakePending:
        self.events.append(f"sample {forward.step}")
        if forward.step in self.faults.sample:
            raise DeviceError(f"sample of step {forward.step}")
        self._expect(forward.started, "sample before start")
        self._expect(self._last is None or self._last.waited, "sample before the previous step's wait")
        sampled = Sampled(tokens=[], logprobs=[])
        for number, row in enumerate(inputs.rows):
            context = forward.contexts[row.row]
            self._expect(row.position == len(context), "the sampled position does not follow the context")
            token = choose(
                context,
                self.vocab_size,
                row.params,
                seed=row.seed,
                choice=row.choice,
                position=row.position,
                banned=row.banned,
                counts=row.output_counts,
                prompt_ids=row.prompt_ids,
            )
            sampled.tokens.append((token,))
            wanted = row.params.logprobs
            sampled.logprobs.append(None if wanted is None else (logprob(context, token, wanted),))
            error = self.faults.row(row)
            if error is not None:
                sampled.errors[number] = error
        sampled.scores = [logprob(forward.contexts[s.row], s.token_id, s.top) for s in inputs.scores]
        self._last = FakePending(self, forward.step, sampled, self.ready_s)
        return self._last

    def close(self) -> None:
        self.closed = True


class ContiguousKVManager:
    """A naive KV manager: each sequence has one run of blocks for its whole length, and nothing is shared."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total = num_blocks
        self._owner: list[Sequence | None] = [None] * num_blocks

    @property
    def available(self) -> int:
        return self._owner.count(None)

    @property
    def cached(self) -> int:
        return 0

    def match(self, seq: Sequence) -> PrefixHit:
        return PrefixHit()

    def explain(self, seq: Sequence, hit: PrefixHit) -> CacheReport:
        return CacheReport(0, 0, "disabled")

    def allocate(self, seq: Sequence, length: int, hit: PrefixHit | None = None, reserve: int = 0) -> bool:
        if length <= seq.capacity:
            return True
        assert not seq.capacity, "a sequence outgrew its run"
        count = -(-seq.limit // self.block_size)
        for first in range(self.total - count + 1):
            if all(owner is None for owner in self._owner[first : first + count]):
                self._owner[first : first + count] = [seq] * count
                seq.block_table.extend(range(first, first + count))
                seq.capacity = count * self.block_size
                return True
        return False

    def fork(self, parent: Sequence, child: Sequence) -> list[PageCopy] | None:
        if not self.allocate(child, child.limit):
            return None
        used = -(-parent.scheduled // self.block_size)
        pairs = zip(parent.block_table[:used], child.block_table[:used], strict=True)
        return [PageCopy(source, target) for source, target in pairs]

    def truncate(self, seq: Sequence, length: int) -> None:
        return

    def publish(self, seq: Sequence) -> None:
        return

    def free(self, seq: Sequence) -> None:
        for block in seq.block_table:
            self._owner[block] = None
        del seq.block_table[:]
        seq.capacity = 0

    def states(self) -> bytes:
        return bytes(owner is not None for owner in self._owner)

    def check(self) -> None:
        for block, owner in enumerate(self._owner):
            assert owner is None or block in owner.block_table, f"block {block} is not in its owner's table"
