"""An engine that says what a script tells it to, so that the API can be tested without a model.

It keeps the promises of ``engine.interfaces.AsyncEngine``: closing a generator aborts, an aborted choice gets a closing
delta, ``keep`` cuts the count. Token ids mean nothing to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from mlxserve.errors import MlxserveError
from mlxserve.types import CacheReport, Delta, FinishReason, ModelInfo, Request, Snapshot, Stats, TokenLogprob, Usage

EOS = 2


def logprob_of(token: int) -> float:
    """What the fake says of any token."""
    return -((token % 13) + 1) / 8


def scored(token: int, top: int, vocab_size: int) -> TokenLogprob:
    others = tuple(((token + i) % vocab_size, logprob_of(token) - i / 4) for i in range(top))
    return TokenLogprob(token, logprob_of(token), others)


@dataclass
class Script:
    """What one request is answered with. ``tokens``: of each choice; EOS as the last one ends it with "stop"."""

    tokens: Callable[[int], Sequence[int]] = lambda index: (72, 105, EOS)
    per_delta: int = 1
    delay_s: float = 0.0  # before each delta
    first_delay_s: float = 0.0
    refuse: MlxserveError | None = None  # raised before the first delta
    fail_after: int | None = None  # deltas after which the request fails
    fail_reason: FinishReason = "error"
    crash_after: int | None = None  # deltas after which the generator raises


@dataclass
class Live:
    request: Request
    ended: dict[int, int | None] = field(default_factory=dict)  # choice -> keep


class FakeEngine:
    """One event loop uses it. ``reply``: the script of each request."""

    def __init__(self, reply: Callable[[Request], Script] | None = None, vocab_size: int = 300) -> None:
        self.reply = reply or (lambda request: Script())
        self.info = ModelInfo(
            name="fake",
            quantization="none",
            backend="fake",
            dtype="float32",
            vocab_size=vocab_size,
            max_model_len=512,
            block_size=16,
            num_blocks=64,
            max_num_seqs=4,
            eos_token_ids=(EOS,),
        )
        self.requests: list[Request] = []
        self.live: dict[str, Live] = {}
        self.aborts: list[tuple[str, int | None, int | None]] = []
        self.count: Counter[str] = Counter()
        self.down: str | None = None
        self.closed: list[str] = []  # generators closed before their end

    async def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        script = self.reply(request)
        if script.refuse is not None:
            raise script.refuse
        assert request.request_id not in self.live
        self.requests.append(request)
        self.count["total"] += 1
        live = self.live[request.request_id] = Live(request)
        unfinished = request.params.n
        try:
            await asyncio.sleep(script.first_delay_s)
            async for delta in self._deltas(live, script):
                self.count["decoded"] += len(delta.token_ids)
                unfinished -= delta.finish_reason is not None
                yield delta
        finally:
            del self.live[request.request_id]
            self.count["aborted" if unfinished else "completed"] += 1
            if unfinished:
                self.closed.append(request.request_id)

    async def _deltas(self, live: Live, script: Script) -> AsyncGenerator[Delta, None]:
        request, params = live.request, live.request.params
        said = {index: list(script.tokens(index)) for index in range(params.n)}
        done = dict.fromkeys(said, 0)
        number = 0
        prompt_logprobs = self._prompt_logprobs(request)
        while said:
            for index in list(said):
                if script.fail_after == number:
                    reason = script.fail_reason
                    yield Delta(request_id=request.request_id, index=index, finish_reason=reason, error="planted")
                    return
                if script.crash_after == number:
                    raise RuntimeError("planted crash")
                await asyncio.sleep(script.delay_s)
                delta = self._next(live, index, said[index], done, script.per_delta, prompt_logprobs)
                prompt_logprobs = None
                number += 1
                if delta.finish_reason is not None:
                    del said[index]
                yield delta

    def _prompt_logprobs(self, request: Request) -> tuple[TokenLogprob | None, ...] | None:
        top = request.params.prompt_logprobs
        if top is None:
            return None
        return (None, *(scored(token, top, self.info.vocab_size) for token in request.prompt[1:]))

    def _next(
        self,
        live: Live,
        index: int,
        tokens: list[int],
        done: dict[int, int],
        per_delta: int,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None,
    ) -> Delta:
        request, params = live.request, live.request.params
        limit = params.max_tokens if params.max_tokens is not None else self.info.max_model_len
        reason: FinishReason | None = None
        ids: tuple[int, ...] = ()
        if index in live.ended or None in live.ended:
            reason = "abort"
            keep = live.ended.get(index)
            done[index] = done[index] if keep is None else keep
        else:
            taken = tokens[: max(0, min(per_delta, limit - done[index]))]
            del tokens[: len(taken)]
            ids = tuple(taken)
            done[index] += len(ids)
            ended = bool(ids) and ids[-1] == EOS and not params.ignore_eos
            reason = "stop" if ended else "length" if done[index] >= limit or not tokens else None
        top = params.logprobs
        return Delta(
            request_id=request.request_id,
            index=index,
            token_ids=ids,
            logprobs=None if top is None else tuple(scored(token, top, self.info.vocab_size) for token in ids),
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            usage=Usage(len(request.prompt), done[index], len(request.prompt) // 16 * 16) if reason else None,
            cache_report=CacheReport(0, 0, "never_seen") if reason and request.cache_report else None,
        )

    def abort(self, request_id: str, index: int | None = None, keep: int | None = None) -> None:
        self.aborts.append((request_id, index, keep))
        if live := self.live.get(request_id):
            live.ended[index] = keep  # type: ignore[index]

    def healthy(self) -> str | None:
        return self.down

    async def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def stats(self) -> Stats:
        return Stats(
            uptime_s=1.0,
            requests_total=self.count["total"],
            requests_active=len(self.live),
            requests_running=len(self.live),
            requests_aborted=self.count["aborted"],
            requests_completed=self.count["completed"],
            queue_depth=0,
            errors_total=0,
            ttft_ms_p50=None,
            ttft_ms_p95=None,
            tpot_ms_p50=None,
            tpot_ms_p95=None,
            tokens_per_sec=0.0,
            kv_blocks_total=self.info.num_blocks,
            kv_blocks_used=0,
            kv_blocks_cached=0,
            kv_blocks_free=self.info.num_blocks,
            prefix_cache_hits=0,
            prefix_tokens_saved=0,
            prefill_tokens_total=0,
            decode_tokens_total=self.count["decoded"],
            preemptions_total=0,
            batch_size_last=0,
            batch_size_max=0,
            steps_total=0,
            last_step_age_s=0.0,
        )
