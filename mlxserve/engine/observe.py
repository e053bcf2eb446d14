"""What an observer sees of the engine: figures at any time, and a picture of everything held between two steps."""

from __future__ import annotations

from mlxserve.engine.kv_manager import KVManager
from mlxserve.engine.metrics import Metrics
from mlxserve.engine.scheduler import Scheduler
from mlxserve.engine.sequence import Sequence, Status
from mlxserve.types import SequenceState, SequenceView, Snapshot, Stats

_WAITING_SHOWN = 32


def stats(scheduler: Scheduler, kv: KVManager, metrics: Metrics, active: int, now: float) -> Stats:
    """May be called from any thread. ``active``: requests in flight; ``now``: the engine's clock."""
    available, cached = kv.available, kv.cached
    return Stats(
        uptime_s=now - metrics.started_s,
        requests_total=metrics.requests_total,
        requests_active=active,
        requests_running=len(scheduler.running),
        requests_aborted=metrics.requests_aborted,
        requests_completed=metrics.requests_completed,
        queue_depth=len(scheduler.waiting),
        errors_total=metrics.requests_failed,
        ttft_ms_p50=metrics.ttft_ms(0.5),
        ttft_ms_p95=metrics.ttft_ms(0.95),
        tpot_ms_p50=metrics.tpot_ms(0.5),
        tpot_ms_p95=metrics.tpot_ms(0.95),
        tokens_per_sec=metrics.tokens_per_second(now),
        kv_blocks_total=kv.total,
        kv_blocks_used=kv.total - available + cached,
        kv_blocks_cached=cached,
        kv_blocks_free=available - cached,
        prefix_cache_hits=metrics.prefix_cache_hits,
        prefix_tokens_saved=metrics.prefix_tokens_saved,
        prefill_tokens_total=metrics.prefill_tokens,
        decode_tokens_total=metrics.decode_tokens,
        preemptions_total=metrics.preemptions,
        batch_size_last=metrics.batch_size_last,
        batch_size_max=metrics.batch_size_max,
        steps_total=metrics.steps,
        last_step_age_s=now - metrics.last_step_s,
    )


def snapshot(scheduler: Scheduler, kv: KVManager, figures: Stats) -> Snapshot:
    """Called by the engine's thread between two steps."""
    return Snapshot(
        stats=figures,
        running=tuple(_view(seq) for seq in scheduler.running),
        waiting=tuple(_view(seq) for seq in scheduler.waiting.first(_WAITING_SHOWN)),
        blocks=kv.states(),
    )


def _view(seq: Sequence) -> SequenceView:
    state: SequenceState = "decode"
    if seq.status is Status.WAITING:
        state = "waiting"
    elif seq.prefilling:
        state = "prefill"
    return SequenceView(
        request_id=seq.request_id,
        index=seq.index,
        state=state,
        prompt_tokens=seq.num_prompt,
        cached_tokens=seq.state.cached_tokens or 0,
        computed_tokens=seq.computed,
        generated_tokens=seq.num_output,
        max_tokens=seq.params.max_tokens,
        blocks=tuple(seq.block_table),
    )
