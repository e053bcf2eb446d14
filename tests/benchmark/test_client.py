"""The load client against a foreign server over real sockets; its schedule says what must be measured."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from mlxserve.benchmark.client import run_load
from mlxserve.benchmark.load import LoadConfig, PlannedRequest, plan_load
from mlxserve.benchmark.summary import Objective, RequestRecord, summarise
from mlxserve.errors import MlxserveError
from tests.benchmark.foreign_server import ForeignServer

MARGIN_S = 0.15  # a busy machine


def load(
    server: ForeignServer, requests: list[PlannedRequest] | None = None, **settings: Any
) -> tuple[list[RequestRecord], float]:
    async def main() -> tuple[list[RequestRecord], float]:
        async with server.running() as url:
            config = LoadConfig(url=url, **settings)
            return await run_load(config, requests or plan_load(config), lambda record: None)

    return asyncio.run(main())


def test_times_and_goodput_are_those_of_the_schedule() -> None:
    server = ForeignServer(first_s=0.3, gap_s=0.05)
    records, duration = load(server, num_prompts=4, concurrency=4, output_tokens="9")
    figures = summarise(records, duration, Objective(ttft_s=0.3 + MARGIN_S))
    assert figures["failed"] == 0
    assert 300 <= (figures["ttft_ms_p50"] or 0) <= (figures["ttft_ms_p95"] or 0) <= 300 + 1000 * MARGIN_S
    assert 45 <= (figures["tpot_ms_p50"] or 0) <= 50 + 1000 * MARGIN_S / 8
    assert 700 <= (figures["latency_ms_p50"] or 0) <= 700 + 1000 * MARGIN_S
    assert figures["output_tokens_per_s"] == pytest.approx(36 / duration)
    assert figures["total_tokens_per_s"] == pytest.approx((36 + 160) / duration)
    assert figures["goodput_per_s"] == pytest.approx(4 / duration)
    assert summarise(records, duration, Objective(ttft_s=0.299))["goodput_per_s"] == 0
    assert figures["cached_share"] is None


def test_a_closed_loop_keeps_its_concurrency() -> None:
    server = ForeignServer()
    _, duration = load(server, num_prompts=6, concurrency=2, output_tokens="2")
    assert server.most_active == 2
    assert 0.36 <= duration <= 0.36 + 3 * MARGIN_S


def test_a_rate_is_kept_and_waiting_counts() -> None:
    server = ForeignServer()
    records, _ = load(server, num_prompts=5, concurrency=5, arrivals="fixed", rate=10, output_tokens="2")
    gaps = [b - a for a, b in itertools.pairwise(server.arrived)]
    assert sum(gaps) == pytest.approx(0.4, abs=MARGIN_S)
    assert [record.sent_s for record in records] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    one_client, _ = load(ForeignServer(), num_prompts=3, concurrency=1, arrivals="fixed", rate=1000, output_tokens="2")
    first = [record.first_token_s or 0 for record in one_client]
    assert [first[0] < 0.2 + MARGIN_S, first[1] > 0.2, first[2] > 0.3] == [True, True, True]


def test_poisson_arrivals_are_uneven() -> None:
    server = ForeignServer(first_s=0)
    records, _ = load(server, num_prompts=20, concurrency=20, arrivals="poisson", rate=40, output_tokens="1")
    gaps = [b.sent_s - a.sent_s for a, b in itertools.pairwise(records)]
    assert max(gaps) > 3 * min(gaps)


def test_a_trace_is_sent_at_its_times() -> None:
    server = ForeignServer(first_s=0)
    planned = [PlannedRequest(0.3, "late", 1), PlannedRequest(0.0, "early", 2)]
    records, _ = load(server, planned)
    assert [body["prompt"] for body in server.bodies] == ["early", "late"]
    assert [record.sent_s for record in records] == [pytest.approx(0.3), 0.0]


@pytest.mark.parametrize("knows_options", [True, False])
def test_without_usage_the_tokens_are_those_asked_for(knows_options: bool) -> None:
    server = ForeignServer(usage=False, tokens_a_piece=4, stream_options=knows_options)
    records, duration = load(server, num_prompts=2, concurrency=1, output_tokens="12")
    assert [(record.error, record.output_tokens) for record in records] == [(None, 12), (None, 12)]
    assert [record.first_token_s for record in records] == pytest.approx([0.1, 0.1], abs=MARGIN_S)
    figures = summarise(records, duration)
    assert figures["total_tokens_per_s"] is None
    assert len(server.bodies) == (2 if knows_options else 3), "refused once, then never sent again"


def test_an_answer_that_stopped_without_usage_has_an_unknown_length() -> None:
    records, duration = load(ForeignServer(usage=False, stop_early=True), num_prompts=1)
    assert records[0].error is None
    assert records[0].output_tokens is None
    assert summarise(records, duration)["output_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("429", "HTTP 429: "),
        ("error", "The pool burst."),
        ("cut", "RemoteProtocolError"),
        ("garbage", "an event that is no JSON object: <html>"),
        ("stall", "no whole answer within 0.5 s"),
    ],
)
def test_a_failure_is_one_record_and_the_others_go_on(kind: str, said: str) -> None:
    planned = [PlannedRequest(None, prompt, 2) for prompt in ("good", kind, "good")]
    records, duration = load(ForeignServer(), planned, timeout_s=0.5)
    assert said in (records[1].error or "")
    assert [record.error for record in (records[0], records[2])] == [None, None]
    assert summarise(records, duration)["failed"] == 1


def test_a_server_that_is_none_is_said() -> None:
    config = LoadConfig(url="http://127.0.0.1:1/v1", num_prompts=1)
    with pytest.raises(MlxserveError, match="does not answer as an OpenAI-compatible server"):
        asyncio.run(run_load(config, plan_load(config), lambda record: None))
