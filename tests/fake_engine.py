"""A pool of blocks and sequences that only pretend to be computed, for the page's live view. Not a scheduler."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from mlxserve.types import ModelInfo, SequenceView, Snapshot, Stats

BLOCK = 16


@dataclass
class FakeSequence:
    request_id: str
    prompt: int
    cached: int = 0
    computed: int = 0
    generated: int = 0
    max_tokens: int | None = None
    blocks: list[int] = field(default_factory=list)

    def view(self) -> SequenceView:
        state = "waiting" if not self.blocks else "prefill" if self.computed < self.prompt else "decode"
        return SequenceView(
            request_id=self.request_id,
            index=0,
            state=state,
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            computed_tokens=self.computed,
            generated_tokens=self.generated,
            max_tokens=self.max_tokens,
            blocks=tuple(self.blocks),
        )


class FakeEngine:
    """Hands out blocks, shares the first ones of every prompt, and counts. One event loop uses it."""

    def __init__(self, num_blocks: int = 1536, max_num_seqs: int = 16) -> None:
        self.info = ModelInfo(
            name="smollm2-135m",
            quantization="q4_1",
            backend="fake",
            dtype="float32",
            vocab_size=49152,
            max_model_len=8192,
            block_size=BLOCK,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            eos_token_ids=(2,),
        )
        self.refs = [0] * num_blocks
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.prefix: list[int] = []  # blocks of the system prompt that every request shares
        self.sequences: dict[str, FakeSequence] = {}
        self.decoded = self.prefilled = self.saved = self.hits = self.steps = 0
        self.requests = self.completed = 0
        self.started = time.monotonic()
        self.snapshots = 0
        self._ids = itertools.count(1)
        self._ttft: list[float] = []

    def add(self, prompt: int, max_tokens: int | None = None) -> FakeSequence:
        sequence = FakeSequence(f"chatcmpl-{next(self._ids):04d}", prompt, max_tokens=max_tokens)
        self.sequences[sequence.request_id] = sequence
        self.requests += 1
        return sequence

    def prefill(self, sequence: FakeSequence, tokens: int) -> None:
        """Computes some of the prompt; the first call takes what the cache holds."""
        if not sequence.blocks:
            shared = self.prefix[: max(sequence.prompt - 1, 0) // BLOCK]
            sequence.blocks = list(shared)
            for block in shared:
                self.refs[block] += 1
                self.cached.pop(block, None)
            sequence.cached = sequence.computed = len(shared) * BLOCK
            self.saved += sequence.cached
            self.hits += bool(shared)
        step = min(tokens, sequence.prompt - sequence.computed)
        self._grow(sequence, sequence.computed + step)
        self.prefilled += step
        self.steps += 1
        if not self.prefix and sequence.computed >= 5 * BLOCK:
            self.prefix = sequence.blocks[:4]

    def decode(self, sequence: FakeSequence) -> None:
        sequence.generated += 1
        self.decoded += 1
        self.steps += 1
        self._grow(sequence, sequence.computed + 1)

    def finish(self, sequence: FakeSequence) -> None:
        if self.sequences.pop(sequence.request_id, None) is None:
            return
        self.completed += 1
        for block in sequence.blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                self.cached[block] = None

    def _grow(self, sequence: FakeSequence, length: int) -> None:
        while len(sequence.blocks) * BLOCK < length:
            sequence.blocks.append(self._take())
        sequence.computed = length

    def _take(self) -> int:
        free = next((b for b, n in enumerate(self.refs) if not n and b not in self.cached), None)
        block = free if free is not None else self.cached.popitem(last=False)[0]
        self.refs[block] = 1
        return block

    async def snapshot(self) -> Snapshot:
        self.snapshots += 1
        views = [sequence.view() for sequence in self.sequences.values()]
        return Snapshot(
            stats=self.stats(),
            running=tuple(v for v in views if v.state != "waiting"),
            waiting=tuple(v for v in views if v.state == "waiting"),
            blocks=bytes(255 if b in self.cached else min(n, 254) for b, n in enumerate(self.refs)),
        )

    def stats(self) -> Stats:
        used = sum(1 for n in self.refs if n) + len(self.cached)
        running = sum(1 for s in self.sequences.values() if s.blocks)
        return Stats(
            uptime_s=time.monotonic() - self.started,
            requests_total=self.requests,
            requests_active=len(self.sequences),
            requests_running=running,
            requests_aborted=0,
            requests_completed=self.completed,
            queue_depth=len(self.sequences) - running,
            errors_total=0,
            ttft_ms_p50=118.0 if self.decoded else None,
            ttft_ms_p95=341.0 if self.decoded else None,
            tpot_ms_p50=18.4 if self.decoded else None,
            tpot_ms_p95=26.9 if self.decoded else None,
            tokens_per_sec=self.decoded / (time.monotonic() - self.started),
            kv_blocks_total=len(self.refs),
            kv_blocks_used=used,
            kv_blocks_cached=len(self.cached),
            kv_blocks_free=len(self.refs) - used,
            prefix_cache_hits=self.hits,
            prefix_tokens_saved=self.saved,
            prefill_tokens_total=self.prefilled,
            decode_tokens_total=self.decoded,
            preemptions_total=0,
            batch_size_last=running,
            batch_size_max=running,
            steps_total=self.steps,
            last_step_age_s=0.0,
        )
