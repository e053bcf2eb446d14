"""What is served, how it is doing, and cancelling; errors in one shape everywhere."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxserve.api.schemas import ChatRequest, CompletionRequest
from mlxserve.types import Stats
from tests.api.fakes import FakeEngine, Script
from tests.api.harness import CHAT, COMPLETIONS, HI, Api
from tests.api.tiny_text import ids


def test_models_lists_every_served_name() -> None:
    api = Api(served_names=("fake", "org/other"))
    cards = api.get("/v1/models").json
    assert cards["object"] == "list"
    assert [card["id"] for card in cards["data"]] == ["fake", "org/other"]
    for card in cards["data"]:
        assert api.get(f"/v1/models/{card['id']}").json == card
        assert api.chat(model=card["id"]).json["model"] == card["id"]
    assert api.get("/v1/models/none").error["code"] == "model_not_found"
    assert api.chat().json["model"] == "fake"


def test_health_tells_the_truth() -> None:
    api = Api()
    answer = api.get("/health")
    assert answer.status == 200
    want = {"status": "ok", "model": "fake", "quant": "none", "block_size": 16, "kv_blocks_total": 64, "max_batch": 4}
    assert answer.json.items() >= want.items()
    assert answer.json["last_step_age_s"] == 0.0
    api.engine.down = "The engine has not stepped for 20.0 s"
    answer = api.get("/health")
    assert answer.status == 503
    assert answer.json["status"] == "unavailable"
    assert answer.json["reason"] == api.engine.down


STATS = """uptime_s model requests_total requests_active queue_depth errors_total ttft_ms tpot_ms tokens_per_sec
kv_blocks_total kv_blocks_used kv_blocks_cached kv_blocks_free prefix_cache_hits prefix_tokens_saved
prefill_tokens_total decode_tokens_total preemptions_total batch_size_last batch_size_max""".split()


def test_stats_are_flat_and_metrics_give_the_same_on_request() -> None:
    api = Api()
    api.chat()
    stats = api.get("/stats").json
    assert set(STATS) <= set(stats)
    assert set(stats["ttft_ms"]) == set(stats["tpot_ms"]) == {"p50", "p95"}
    assert stats["requests_total"] == 1
    assert stats["decode_tokens_total"] == 12
    assert api.get("/metrics", accept="application/json").json == stats


def scrape(api: Api) -> dict[str, float]:
    families = text_string_to_metric_families(api.get("/metrics").raw.decode())
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_every_counter_of_the_engine_is_a_metric() -> None:
    api = Api()
    api.chat()
    answer = api.get("/metrics", accept="text/plain")
    assert answer.headers["content-type"].startswith("text/plain")
    values = scrape(api)
    shown = {name.removeprefix("mlxserve_").removesuffix("_total") for name in values}
    renamed = {"uptime_s", "tokens_per_sec", "last_step_age_s", "requests_total"}
    for field in fields(Stats):
        if field.name not in renamed and not field.name.startswith(("ttft", "tpot")):
            assert field.name.removesuffix("_total") in shown
    assert values["mlxserve_time_to_first_token_seconds_count"] == 1
    assert values["mlxserve_time_per_output_token_seconds_count"] == 1
    assert values["mlxserve_requests_completed_total"] == 1
    openmetrics = api.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.raw.endswith(b"# EOF\n")


def test_met_01_names_are_escaped_and_unknown_names_become_no_series() -> None:
    engine = FakeEngine()
    engine.info = engine.info.__class__(
        **{f.name: getattr(engine.info, f.name) for f in fields(engine.info)} | {"name": 'a"b\\c\nd'}
    )
    api = Api(engine=engine, served_names=('a"b\\c\nd',))
    before = len(api.get("/metrics").raw.splitlines())
    for number in range(30):
        assert api.chat(model=f'no"such\\model-{number}\n').status == 404
    page = api.get("/metrics").raw.decode()
    assert len(page.splitlines()) == before
    assert "no" + '"such' not in page
    assert "model-" not in page
    info = next(f for f in text_string_to_metric_families(page) if f.name == "mlxserve_model_info")
    assert info.samples[0].labels["model"] == 'a"b\\c\nd'


def test_met_03_started_is_completed_and_aborted_and_rejections_apart() -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids("abc" * 20), delay_s=0.005))
    api = Api(engine=engine)

    async def run() -> None:
        async def leave() -> None:
            accepted = engine.count["total"]
            task = asyncio.create_task(answer())
            while engine.count["total"] == accepted:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def answer() -> None:
            async with api.client() as client:
                await client.post(CHAT, json={"messages": HI, "max_tokens": 50})

        for _ in range(5):
            await leave()
        await asyncio.gather(*(answer() for _ in range(3)))

    asyncio.run(run())
    for _ in range(2):
        assert api.chat(max_tokens=-1).status == 400
    values = scrape(api)
    assert values["mlxserve_requests_started_total"] == 8
    assert values["mlxserve_requests_aborted_total"] == 5
    assert values["mlxserve_requests_completed_total"] == 3
    assert values["mlxserve_http_rejected_requests_total"] == 2
    assert sum(value for name, value in values.items() if "abort" in name or "cancel" in name) == 5


def test_cancel_ends_a_request_under_way_with_what_it_has() -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids("abc" * 50), delay_s=0.005))
    api = Api(engine=engine)

    async def run(path: str, body: dict[str, Any]) -> Any:
        decoded = engine.count["decoded"]
        async with api.client() as client:
            task = asyncio.create_task(client.post(path, json=body | {"request_id": "mine", "max_tokens": 150}))
            while not engine.count["decoded"] > decoded + 4:
                await asyncio.sleep(0.001)
            twice = await client.post(path, json=body | {"request_id": "mine"})
            assert twice.status_code == 400
            assert twice.json()["error"]["param"] == "request_id"
            cancelled = await client.post("/v1/requests/mine/cancel")
            assert cancelled.json() == {"id": "mine", "object": "request.cancelled", "cancelled": True}
            return await task

    for path, body in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": ["a", "b"], "n": 2})):
        answer = asyncio.run(run(path, body)).json()
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "abort"
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert text
            assert ("abc" * 50).startswith(text)
        assert 0 < answer["usage"]["completion_tokens"] < 100
        assert not engine.live
        gone = api.post("/v1/requests/mine/cancel", {})
        assert gone.status == 404
        assert gone.error["code"] == "request_not_found"


def test_capabilities_name_what_is_honoured_refused_and_capped() -> None:
    answer = Api().get("/v1/capabilities").json
    assert set(answer["parameters"]) == {CHAT, COMPLETIONS}
    assert {"n", "seed", "logprobs", "stop", "logit_bias"} <= set(answer["parameters"][CHAT])
    assert not set(answer["refused_parameters"]) & set(answer["parameters"][CHAT])
    assert answer["caps"]["n"] == 128
    assert answer["caps"]["tokens"] == 512
    assert answer["features"]["fill_in_the_middle"] is False
    assert answer["features"]["prefix_cache"] is True
    assert answer["model"]["names"] == ["fake"]
    assert answer["unknown_parameters"] == "reported in x-mlxserve-ignored"


def test_every_cap_is_enforced_by_name() -> None:
    api = Api()
    caps = api.get("/v1/capabilities").json["caps"]
    for over in (
        {"n": caps["n"] + 1},
        {"stop": ["x"] * (caps["stop"] + 1)},
        {"stop": "x" * (caps["stop_length"] + 1)},
        {"stop_token_ids": [5] * (caps["stop_token_ids"] + 1)},
        {"logit_bias": {str(token): 1 for token in range(caps["logit_bias"] + 1)}},
        {"logprobs": caps["logprobs"] + 1},
        {"prompt": ["a"] * (caps["prompts"] + 1)},
    ):
        api.refused(api.post(COMPLETIONS, {"prompt": "a"} | over), next(iter(over)))
    api.refused(api.complete(["a"] * 5, n=caps["n"]), "n")
    api.refused(api.chat(logprobs=True, top_logprobs=caps["logprobs"] + 1), "top_logprobs")
    assert api.complete(["a"] * 4, n=caps["n"], max_tokens=1).status == 200


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/v1/chat/completions/", "/v1"])
def test_unknown_paths_have_openais_error_shape(path: str) -> None:
    for method in ("GET", "POST"):
        answer = Api().request(method, path)
        assert answer.status == 404
        assert answer.error["type"] == "invalid_request_error"


def test_wrong_methods_have_openais_error_shape() -> None:
    api = Api()
    for method, path in (("GET", CHAT), ("DELETE", COMPLETIONS), ("POST", "/v1/models"), ("PUT", "/health")):
        answer = api.request(method, path)
        assert answer.status == 405
        assert answer.headers["allow"]
        assert answer.error["type"] == "invalid_request_error"


def test_a_fault_of_ours_is_a_500_that_shows_nothing() -> None:
    api = Api(engine=FakeEngine(lambda request: Script(crash_after=0)))
    answer = api.chat()
    assert answer.status == 500
    assert answer.error["type"] == "server_error"
    assert b"planted" not in answer.raw


def test_openapi_is_made_from_the_types() -> None:
    api = Api()
    described = api.get("/openapi.json").json
    assert described["openapi"].startswith("3.1")
    schemas = described["components"]["schemas"]
    for kind in (ChatRequest, CompletionRequest):
        assert set(schemas[kind.__name__]["properties"]) == set(kind.__struct_fields__)
        assert schemas[kind.__name__]["properties"]["model"]["enum"] == ["fake", None]
    names = {route.path for route in api.app.routes} - {"/openapi.json", "/docs"}
    assert {path.replace(":path", "") for path in names} == set(described["paths"])
    refs = str(described).split("#/components/schemas/")[1:]
    assert {ref.split("'")[0] for ref in refs} <= set(schemas)
    assert (
        "securitySchemes"
        in Api(api_keys=("k",))
        .request("GET", "/openapi.json", headers={"authorization": "Bearer k"})
        .json["components"]
    )


def test_docs_ask_nobody_outside() -> None:
    answer = Api().get("/docs")
    page = answer.raw.decode()
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page
    for name in ("ChatRequest", "/v1/completions", "temperature"):
        assert name in page
