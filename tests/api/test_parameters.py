"""Every parameter is honoured, reported as ignored, or refused by name; never dropped silently."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlxserve.text.tokenizer import Tokenizer
from mlxserve.types import SamplingParams
from tests.api.fakes import EOS, FakeEngine, Script
from tests.api.harness import CHAT, COMPLETIONS, HI, Api
from tests.api.tiny_text import FIM, ids, tiny_text

BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def body(path: str, **fields: Any) -> dict[str, Any]:
    return ({"messages": HI} if path == CHAT else {"prompt": "1 2 3"}) | fields


def params_of(path: str, engine: FakeEngine | None = None, **fields: Any) -> SamplingParams:
    """What the engine is asked for."""
    api = Api(engine=engine)
    answer = api.post(path, body(path, **fields))
    assert answer.status == 200, answer.raw
    return api.engine.requests[0].params


def test_prm_01_null_means_absent() -> None:
    for path in (CHAT, COMPLETIONS):
        api = Api("a long answer of more than sixteen tokens")
        names = api.get("/v1/capabilities").json["parameters"][path]
        nulls = {name: None for name in names if name not in ("messages", "prompt")}
        plain, with_nulls = api.post(path, body(path)), api.post(path, body(path) | nulls)
        assert with_nulls.status == 200, with_nulls.raw
        assert with_nulls.text() == plain.text()
        assert with_nulls.json["usage"] == plain.json["usage"]
        assert api.engine.requests[0].params == api.engine.requests[1].params
        assert "x-mlxserve-ignored" not in with_nulls.headers
        streamed = api.stream(path, **{name: value for name, value in nulls.items() if name != "stream"})
        assert streamed.text() == plain.text()
    assert params_of(COMPLETIONS, max_tokens=None).max_tokens == 16
    assert params_of(CHAT, max_tokens=None).max_tokens is None


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"5"', "true", "1e30", "NaN", "1" + "0" * 400])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_prm_03_bad_limits_are_refused_by_name(name: str, value: str) -> None:
    api = Api()
    answer = api.post_raw(CHAT, json.dumps(body(CHAT))[:-1] + f', "{name}": {value}}}')
    assert answer.status == 400
    assert name.removeprefix("max_completion_") in answer.error["message"]


def test_prm_03_a_huge_limit_names_both_numbers() -> None:
    api = Api()
    answer = api.chat(max_tokens=10**12)
    message = api.refused(answer, "messages")
    assert answer.error["code"] == "context_length_exceeded"
    assert "1000000000000" in message
    assert "512" in message


def test_prm_03_a_prompt_whose_size_alone_is_too_much_is_not_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(body_limit=16 << 20)
    huge = "some words " * 700_000
    monkeypatch.setattr(Tokenizer, "encode", lambda *args, **kwargs: pytest.fail("it was tokenised"))
    chat = api.chat(messages=[{"role": "user", "content": huge}])
    spoken = api.chat(messages=[{"role": "user", "content": huge + "<|im_end|>"}])  # goes by segments
    for answer, param in ((chat, "messages"), (spoken, "messages"), (api.complete(prompt=["hi" * 40_000]), "prompt")):
        message = api.refused(answer, param)
        assert answer.error["code"] == "context_length_exceeded"
        assert re.search(r"has at least \d+ tokens.* is 512 tokens", message), message


def test_prm_03_completions_of_zero_tokens_say_nothing() -> None:
    answer = Api().complete(max_tokens=0)
    assert answer.text() == ""
    assert answer.json["usage"]["completion_tokens"] == 0
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_prm_04_max_completion_tokens_wins() -> None:
    assert params_of(CHAT, max_completion_tokens=7).max_tokens == 7
    assert params_of(CHAT, max_tokens=7).max_tokens == 7
    assert params_of(CHAT, max_completion_tokens=7, max_tokens=9).max_tokens == 7
    assert params_of(CHAT).max_tokens is None


FLOATS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "timeout"]


@BOTH
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"NaN"', "1e400", "-1e400", "true", "[1]", "{}"])
def test_prm_07_what_is_no_finite_number_is_refused(path: str, name: str, value: str) -> None:
    api = Api()
    raw = json.dumps(body(path))[:-1] + f', "{name}": {value}}}'
    api.refused(api.post_raw(path, raw), name)


OUT_OF_RANGE = [
    ("temperature", (-0.1, 2.1, 1e308)),
    ("top_p", (-0.1, 1.1)),
    ("min_p", (-0.1, 1.1)),
    ("top_k", (-2, 1.5, 2**31)),
    ("seed", (2**63, -(2**63) - 1, 0.5)),
    ("n", (0, -1, 129, 10**6)),
    ("presence_penalty", (10, -10)),
    ("frequency_penalty", (10, -10)),
    ("repetition_penalty", (0, -1, 11)),
    ("min_tokens", (-1, 1.5)),
    ("timeout", (0, -1, 1e9)),
    ("priority", (0.5, 2**40)),
    ("stream", (1, "true")),
    ("ignore_eos", (1, "no")),
]


@BOTH
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OUT_OF_RANGE for value in values])
def test_prm_07_numbers_out_of_range_are_refused_with_the_value(path: str, name: str, value: Any) -> None:
    api = Api()
    message = api.refused(api.post(path, body(path, **{name: value})), name)
    assert name in message


def test_prm_08_top_k_zero_and_minus_one_mean_no_limit_and_a_large_one_is_cut() -> None:
    assert params_of(CHAT, top_k=0).top_k == 0
    assert params_of(CHAT, top_k=-1).top_k == -1
    assert params_of(CHAT, top_k=1).top_k == 1
    assert params_of(CHAT, top_k=9_999_999).top_k == 300


@BOTH
def test_prm_10_n_with_temperature_zero(path: str) -> None:
    answer = Api().post(path, body(path, n=2, temperature=0, max_tokens=5))
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1]
    assert answer.text(0) == answer.text(1) == "Hello"
    usage = answer.json["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["prompt_tokens"] == Api().post(path, body(path)).json["usage"]["prompt_tokens"]


def test_prm_16_empty_negative_and_mixed_prompts_are_refused() -> None:
    api = Api()
    bad = ["", [""], [], [[]], [-1], [[-1]], [300], [[300]], [5279552648203111001], [1, "a"], [[1], "a"], [1, [2]]]
    for prompt in [*bad, [1.5], None, {}, [None], [True], ["a", ""]]:
        answer = api.complete(prompt)
        assert answer.status == 400, prompt
        assert answer.error["param"].startswith("prompt"), prompt
    assert api.post(COMPLETIONS, {"max_tokens": 1}).error["param"] == "prompt"
    assert api.chat([]).error["param"] == "messages"
    assert api.chat([{"role": "user", "content": ""}]).status == 200
    assert api.complete("fine").status == 200
    assert len(api.engine.requests) == 2


def test_prompts_in_their_four_forms() -> None:
    for prompt, want in (
        ("ab", [ids("ab")]),
        (["ab", "c"], [ids("ab"), ids("c")]),
        ([5, 6], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ):
        api = Api()
        answer = api.complete(prompt, n=2)
        assert sorted(request.prompt for request in api.engine.requests) == sorted(want)
        assert [choice["index"] for choice in answer.json["choices"]] == list(range(2 * len(want)))
        assert answer.json["usage"]["prompt_tokens"] == sum(len(each) for each in want)


def test_choices_of_a_list_of_prompts_stay_with_their_prompt() -> None:
    engine = FakeEngine(lambda request: Script(lambda index: (*request.prompt, *ids(f"-{index}"), EOS)))
    api = Api(engine=engine)
    answer = api.complete(["a", "b"], n=2)
    assert [answer.text(index) for index in range(4)] == ["a-0", "a-1", "b-0", "b-1"]
    stream = api.stream(COMPLETIONS, prompt=["a", "b"], n=2)
    assert [stream.text(index) for index in range(4)] == ["a-0", "a-1", "b-0", "b-1"]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_prm_18_penalties_reach_the_engine(name: str) -> None:
    assert getattr(params_of(COMPLETIONS, **{name: 2}), name) == 2


def test_prm_20_the_seed_reaches_the_engine() -> None:
    assert params_of(CHAT, seed=42).seed == 42
    assert params_of(CHAT, seed=-5).seed == -5
    assert params_of(CHAT).seed is None


def test_every_sampling_field_reaches_the_engine() -> None:
    params = params_of(
        CHAT,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        repetition_penalty=1.5,
        min_tokens=2,
        max_tokens=9,
        logit_bias={"5": 1.5, "7": -100},
        stop_token_ids=[8, 9],
        ignore_eos=True,
        n=2,
        logprobs=True,
        top_logprobs=3,
    )
    assert params == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        repetition_penalty=1.5,
        min_tokens=2,
        max_tokens=9,
        logit_bias=((5, 1.5), (7, -100.0)),
        stop_token_ids=(8, 9),
        ignore_eos=True,
        n=2,
        logprobs=3,
    )


def test_request_fields_reach_the_engine() -> None:
    api = Api()
    api.chat(cache_salt="tenant", priority=-3, timeout=2.5, cache_report=True, request_id="mine-1")
    request = api.engine.requests[0]
    assert (request.salt, request.priority, request.timeout_s) == ("tenant", -3, 2.5)
    assert request.cache_report
    assert request.request_id == "mine-1"
    assert request.arrival_s is not None


def test_the_models_own_defaults_fill_absent_fields() -> None:
    engine = FakeEngine()
    own = {"temperature": 0.6, "top_p": 0.9, "top_k": 20.0, "repetition_penalty": 1.1}
    engine.info = type(engine.info)(
        **{f: getattr(engine.info, f) for f in engine.info.__slots__} | {"default_sampling": own}
    )
    params = params_of(CHAT, engine, top_p=1)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.6, 1, 20, 1.1)


def test_prm_24_suffix_needs_fill_in_the_middle_tokens() -> None:
    api = Api()
    api.refused(api.complete(suffix="after"), "suffix")
    for nothing in ("", None):
        assert api.complete(suffix=nothing).status == 200
    text = tiny_text(fim=True)
    before, after, middle = (text.tokenizer.backend.token_to_id(token) for token in FIM)
    api = Api(text=text)
    assert api.complete("ab", suffix="cd").status == 200
    assert api.engine.requests[0].prompt == (before, *ids("ab"), after, *ids("cd"), middle)
    api.refused(api.complete("ab", suffix="cd", echo=True), "echo")


def test_prm_24_best_of_must_equal_n() -> None:
    api = Api()
    api.refused(api.complete(best_of=2), "best_of")
    api.refused(api.complete(best_of=1, n=2), "best_of")
    assert api.complete(best_of=1).status == 200
    assert api.complete(best_of=2, n=2).status == 200


WOULD_CHANGE = {
    "adapter": "a",
    "adapters": ["a"],
    "draft_model": "d",
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "root",
    "structured_outputs": {"choice": ["a"]},
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "prompt_logprobs": 1,
    "use_beam_search": True,
    "skip_special_tokens": False,
    "logits_processors": ["x"],
    "chat_template": "{{ x }}",
    "modalities": ["text", "audio"],
}


@BOTH
@pytest.mark.parametrize("name", WOULD_CHANGE)
def test_fields_that_would_change_the_output_are_refused_by_name(path: str, name: str) -> None:
    api = Api()
    answer = api.post(path, body(path, **{name: WOULD_CHANGE[name]}))
    message = api.refused(answer, name)
    assert name in message
    assert answer.error["code"] == "unsupported_parameter"


@BOTH
def test_neutral_values_of_unsupported_fields_are_accepted(path: str) -> None:
    neutral = {
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "use_beam_search": False,
        "skip_special_tokens": True,
        "modalities": ["text"],
        "guided_json": None,
        "length_penalty": 1.0,
    }
    assert Api().post(path, body(path, **neutral)).status == 200


@BOTH
def test_unknown_fields_are_named_in_the_header_and_once_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    for _ in range(2):
        answer = api.post(path, body(path, zebra=1, **{"a\r\nb": 2}))
        assert answer.status == 200
        assert answer.headers["x-mlxserve-ignored"] == "zebra, a%0D%0Ab"
    assert sum("zebra" in record.message for record in caplog.records) == 1
    assert api.stream(path, zebra=1).headers["x-mlxserve-ignored"] == "zebra"


@BOTH
def test_strict_refuses_unknown_fields(path: str) -> None:
    api = Api(strict=True)
    api.refused(api.post(path, body(path, zebra=1)), "zebra")
    assert api.post(path, body(path, user="u", metadata={"a": "b"}, store=True, service_tier="auto")).status == 200


def test_fields_that_change_nothing_are_accepted_quietly() -> None:
    answer = Api().chat(user="u", metadata={}, store=False, service_tier="default", parallel_tool_calls=True)
    assert answer.status == 200
    assert "x-mlxserve-ignored" not in answer.headers


DEEP = b"[" * 10**5
MALFORMED = [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"messages":"\xff"}', b"{} x", b"\xef\xbb\xbf{}", DEEP]


@BOTH
@pytest.mark.parametrize("raw", [*MALFORMED, b'{"messages":[' + DEEP, b'{"prompt":"\\ud800"}'])
def test_what_is_not_a_json_object_is_a_400(path: str, raw: bytes) -> None:
    api = Api()
    assert api.post_raw(path, raw).status == 400
    assert api.post_raw(path, raw).error["message"]


def test_chat_template_fields_reach_the_template() -> None:
    api = Api()
    assert api.chat(chat_template_kwargs={"note": "xy"}).status == 200
    assert api.engine.requests[0].prompt[-2:] == ids("xy")
    api.chat(add_generation_prompt=False)
    api.chat()
    assert len(api.engine.requests[1].prompt) < len(api.engine.requests[2].prompt)
    prefill = [*HI, {"role": "assistant", "content": "One, two,"}]
    api.chat(prefill, continue_final_message=True)
    assert api.engine.requests[3].prompt[-9:] == ids("One, two,")
    answer = api.chat(prefill, continue_final_message=True, add_generation_prompt=True)
    assert answer.status == 400


def test_a_model_without_a_template_refuses_chats_only() -> None:
    api = Api(text=tiny_text(template=False))
    assert api.chat().error["code"] == "no_chat_template"
    assert api.complete().status == 200


def test_stream_options_need_stream() -> None:
    api = Api()
    api.refused(api.chat(stream_options={"include_usage": True}), "stream_options")


def test_cache_salt_must_be_a_text() -> None:
    api = Api()
    for salt in ("", 5, [], "a" * 257):
        api.refused(api.chat(cache_salt=salt), "cache_salt")


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "a\n", "é", "a" * 129, 5])
def test_a_request_id_must_be_safe_in_a_header(name: Any) -> None:
    api = Api()
    api.refused(api.chat(request_id=name), "request_id")


def test_the_cache_report_comes_with_the_usage() -> None:
    report = {"cached_tokens": 0, "divergent_position": 0, "reason": "never_seen"}
    assert Api().complete(["a", "b"], cache_report=True).json["cache_report"] == [report, report]
    for options in ({}, {"stream_options": {"include_usage": True}}, {"stream_options": {}}):
        stream = Api().stream(cache_report=True, **options)
        assert stream.frames[-1]["cache_report"] == [report]
        assert sum("cache_report" in frame for frame in stream.frames) == 1
    assert "cache_report" not in Api().complete().json


@BOTH
def test_a_timeout_is_a_408(path: str) -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids("abc"), fail_after=1, fail_reason="timeout"))
    api = Api(engine=engine)
    answer = api.post(path, body(path, timeout=1))
    assert answer.status == 408
    assert answer.error["type"] == "timeout"
    stream = api.stream(path, timeout=1)
    assert stream.error is not None
    assert stream.error["type"] == "timeout"
