"""What the engine asks of the world below and offers to the world above, as Protocols and plain records.

Nothing here knows of text, array libraries or HTTP.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlxserve.types import Delta, FinishReason, Request, SamplingParams, Snapshot, Stats, TokenLogprob


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy a whole page of K and V in every layer, before this step writes any."""

    source: int
    target: int


@dataclass(slots=True)
class ForwardBatch:
    """One step's tokens, flat: T tokens of S sequences, each sequence's tokens together and in order. Arrays have
    typecode "i" (32 bits).

    A decode is a chunk of one token. The block tables are the sequences' own, not copies: the runner reads
    all of the batch before ``forward`` returns, and changes none of it.
    """

    tokens: array[int]  # [T] token ids; 0 where the previous step is still sampling the token
    positions: array[int]  # [T]
    slots: array[int]  # [T] block * block_size + offset: where the token's K and V are written
    query_starts: array[int]  # [S + 1] sequence s has the flat tokens query_starts[s] : query_starts[s + 1]
    context_lens: array[int]  # [S] length of each sequence once this step's tokens are written
    block_tables: list[array[int]]  # [S] physical block of each logical block; may be longer than context_lens needs
    late_tokens: list[tuple[int, int]]  # (flat index, row of the previous step's SampleInputs that samples it)
    page_copies: list[PageCopy]
    logit_rows: array[int]  # flat indices whose logits are wanted, ascending
    deterministic: bool = False  # bits must not depend on the composition of the batch


@dataclass(slots=True)
class SampleRow:
    """One token to sample."""

    row: int  # index into ForwardBatch.logit_rows; repeated when a sequence forks
    params: SamplingParams
    seed: int  # 64 bits; noise is Philox4x32-10 with this key and counter (token id, position, choice, 0)
    position: int  # of the token that is sampled, in its sequence
    choice: int
    banned: Sequence[int] = ()  # ids that cannot be sampled (min_tokens)
    mask: bytes | None = None  # a grammar's allowed tokens, bit i % 8 of byte i // 8
    output_counts: Mapping[int, int] = field(default_factory=dict)  # generated so far; read only for penalties
    prompt_ids: Collection[int] = ()  # distinct ids of the prompt; read only for the repetition penalty


@dataclass(slots=True)
class ScoreRow:
    """A known token whose log-probability is wanted (prompt log-probabilities)."""

    row: int  # index into ForwardBatch.logit_rows: the position before the token
    token_id: int
    top: int  # alternatives to report


@dataclass(slots=True)
class SampleInputs:
    """What is known only once the previous step's tokens are: read whole before ``sample`` returns."""

    rows: list[SampleRow]
    scores: list[ScoreRow] = field(default_factory=list)


@dataclass(slots=True)
class Sampled:
    """Results, in the order of SampleInputs.rows and .scores."""

    tokens: list[tuple[int, ...]]  # one or several tokens a row
    logprobs: list[tuple[TokenLogprob, ...] | None]  # for rows whose params ask for them
    scores: list[TokenLogprob] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)  # rows that could not be sampled (not-a-number logits)
    margins: list[float] = field(default_factory=list)  # best minus second best after the noise; inf when alone


class Pending(Protocol):
    """A sampling step under way."""

    def wait(self) -> Sampled:
        """Blocks until the tokens are known. Raises what the computation raised."""
        ...


class Forward(Protocol):
    """A forward pass that has been described to the device."""

    def start(self) -> None:
        """Begins evaluation as soon as that is safe. Called once, before ``sample``; never blocks for long."""
        ...


class ModelRunner(Protocol):
    """Runs the model on one device. Called from the engine's thread only; order of calls a step: forward, start, (the
    previous step's wait), sample."""

    num_blocks: int
    block_size: int

    def forward(self, batch: ForwardBatch, prev: Pending | None) -> Forward:
        """Describes the pass. ``prev`` is the step that samples the batch's ``late_tokens``; it may be unfinished."""
        ...

    def sample(self, forward: Forward, inputs: SampleInputs) -> Pending:
        """Describes the sampling of that pass's logits and lets it begin."""
        ...

    def close(self) -> None:
        """Ends the runner's threads and frees the pool. Idempotent."""
        ...


class Constraint(Protocol):
    """A grammar's state for one choice."""

    def mask(self) -> bytes:
        """Allowed tokens, one bit each."""
        ...

    def advance(self, token: int) -> None: ...

    def fork(self) -> Constraint: ...


class EngineCore(Protocol):
    """The synchronous engine. One thread calls it; ``stats`` may be called from any."""

    def add(self, request: Request) -> None:
        """Queues a request. Raises BadRequest when it can never run."""
        ...

    def abort(
        self, request_id: str, index: int | None = None, keep: int | None = None, reason: FinishReason = "abort"
    ) -> None:
        """Ends a request, or one choice of it. ``keep``: tokens of that choice that count (a stop string matched
        there). Unknown or finished requests are ignored. The closing delta comes with the next step."""
        ...

    def step(self) -> list[Delta]:
        """One scheduler step; [] when idle."""
        ...

    def has_work(self) -> bool: ...

    def stats(self) -> Stats: ...

    def snapshot(self) -> Snapshot:
        """What is held between two steps."""
        ...

    def close(self) -> None:
        """Ends the runner. Idempotent."""
        ...


class AsyncEngine(Protocol):
    """What the API uses, whether the engine is a thread or another process."""

    def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Deltas of all choices as they come; ends after every choice has finished. Closing it aborts the request.

        Raises BadRequest before the first delta when the request can never run, EngineUnavailable when the engine is
        down. A failure in the middle is a Delta with finish_reason "error".
        """
        ...

    def abort(self, request_id: str, index: int | None = None, keep: int | None = None) -> None:
        """Ends one choice (a stop string matched after ``keep`` tokens) or the whole request; its generator then
        yields the closing delta with the usage that counts."""
        ...

    def stats(self) -> Stats: ...

    def healthy(self) -> str | None:
        """None when the engine stepped or answered in the last seconds, else why not."""
        ...

    async def snapshot(self) -> Snapshot:
        """What the engine holds between two steps. Raises EngineUnavailable when it is down."""
        ...
