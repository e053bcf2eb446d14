"""Frames as OpenAI sends them, and the streamed answer equal to the folded one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserve.errors import BadRequest, EngineUnavailable
from tests.api.fakes import EOS, FakeEngine, Script
from tests.api.harness import CHAT, COMPLETIONS, HI, Api
from tests.api.tiny_text import ids

BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@BOTH
@pytest.mark.parametrize(("max_tokens", "reason"), [(64, "stop"), (3, "length")])
def test_sse_01_one_finish_frame_is_the_last_with_choices(path: str, max_tokens: int, reason: str) -> None:
    api = Api()
    stream = api.stream(path, max_tokens=max_tokens)
    assert stream.finishes() == [reason]
    assert [frame for frame in stream.frames if frame["choices"]][-1]["choices"][0]["finish_reason"] == reason
    folded = api.post(path, {"messages": HI, "prompt": "1 2 3", "max_tokens": max_tokens})
    assert folded.json["choices"][0]["finish_reason"] == reason
    assert stream.text() == folded.text()
    assert stream.done


@BOTH
def test_sse_02_include_usage_is_one_extra_last_frame(path: str) -> None:
    stream = Api().stream(path, max_tokens=5, stream_options={"include_usage": True})
    last = stream.frames[-1]
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert all(frame["usage"] is None for frame in stream.frames[:-1])
    assert usage == Api().post(path, {"messages": HI, "prompt": "1 2 3", "max_tokens": 5}).json["usage"]


@BOTH
@pytest.mark.parametrize("options", [{}, {"stream_options": None}])
def test_usage_is_on_the_final_chunk_by_default(path: str, options: dict[str, Any]) -> None:
    stream = Api().stream(path, n=2, max_tokens=4, **options)
    assert [("usage" in frame) for frame in stream.frames] == [False] * (len(stream.frames) - 1) + [True]
    assert stream.frames[-1]["choices"][0]["finish_reason"] == "length"
    assert stream.usages[0]["completion_tokens"] == 8


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": None}])
def test_no_usage_when_stream_options_do_not_ask(options: dict[str, Any]) -> None:
    assert Api().stream(stream_options=options).usages == []


def test_sse_04_first_delta_has_role_and_empty_content() -> None:
    first, second, *rest = Api().stream(max_tokens=4).frames
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"] == {"content": "H"}
    assert all("role" not in frame["choices"][0]["delta"] for frame in rest)
    assert rest[-1]["choices"][0]["delta"] == {}


@BOTH
def test_sse_05_bytes_end_with_done_and_an_empty_line(path: str) -> None:
    stream = Api().stream(path, max_tokens=5)
    assert stream.raw.endswith(b"}\n\ndata: [DONE]\n\n")
    assert stream.raw.count(b"[DONE]") == 1
    assert stream.comments == []


@BOTH
def test_one_id_created_and_model_throughout(path: str) -> None:
    stream = Api().stream(path, stream_options={"include_usage": True})
    assert len({(frame["id"], frame["created"], frame["model"], frame["object"]) for frame in stream.frames}) == 1
    assert stream.frames[0]["id"] == stream.headers["x-request-id"]


def test_sse_07_keep_alive_comments_only_after_silence() -> None:
    def scripted(request: object) -> Script:
        return Script(lambda index: (*ids("ab"), EOS), first_delay_s=0.25)

    quiet = Api(engine=FakeEngine(scripted), keep_alive_s=0.1, open_after_s=0.02).stream()
    assert quiet.comments == ["keep-alive"] * len(quiet.comments)
    assert quiet.comments
    assert quiet.text() == "ab"
    assert quiet.finishes() == ["stop"]
    assert Api(engine=FakeEngine(scripted), open_after_s=0.02).stream().comments == []


def test_sse_07_headers_come_before_a_slow_first_token() -> None:
    """The role frame goes out once the engine has had its time to refuse."""
    engine = FakeEngine(lambda request: Script(first_delay_s=30))
    app = Api(engine=engine, open_after_s=0.01).app
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        opened = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                opened.set()

        body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await opened.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b"", "root_path": ""}
        await asyncio.wait_for(app(scope, receive, send), 5)

    asyncio.run(run())
    assert sent[0]["status"] == 200
    assert b'"role":"assistant"' in sent[1]["body"]
    assert engine.closed
    assert not engine.live


INVALID = [
    {"n": 0},
    {"temperature": -1},
    {"max_tokens": -5},
    {"top_p": 7},
    {"messages": []},
    {"stop": ""},
    {"tools": [1]},
]


@pytest.mark.parametrize("wrong", INVALID)
def test_sse_08_an_invalid_parameter_is_a_400_before_any_stream_opens(wrong: dict[str, Any]) -> None:
    api = Api()
    answer = api.post(CHAT, {"messages": HI, "stream": True, **wrong})
    api.refused(answer, next(iter(wrong)))
    assert not api.engine.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_sse_10_a_too_long_prompt_is_a_typed_400(path: str, stream: bool) -> None:
    api = Api()
    body = {"messages": [{"role": "user", "content": "word " * 300}], "prompt": "word " * 300, "stream": stream}
    answer = api.post(path, body)
    message = api.refused(answer, "messages" if path == CHAT else "prompt")
    assert answer.error["code"] == "context_length_exceeded"
    assert "512" in message
    assert "15" in message
    assert not api.engine.requests


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_an_http_error_too(stream: bool) -> None:
    for error, status in ((BadRequest("no", param="n"), 400), (EngineUnavailable("down"), 503)):
        api = Api(engine=FakeEngine(lambda request, error=error: Script(refuse=error)))
        answer = api.chat(stream=stream)
        assert answer.status == status
        assert answer.error["message"] == error.message


@BOTH
def test_sse_11_every_choice_has_its_own_index(path: str) -> None:
    engine = FakeEngine(lambda request: Script(lambda index: (*ids(f"choice {index}"), EOS)))
    api = Api(engine=engine)
    stream = api.stream(path, n=3, max_tokens=40)
    folded = api.post(path, {"messages": HI, "prompt": "1 2 3", "n": 3, "max_tokens": 40})
    for index in range(3):
        assert stream.text(index) == f"choice {index}" == folded.text(index)
        assert stream.finishes(index) == ["stop"]
        if path == CHAT:
            assert sum("role" in choice["delta"] for choice in stream.choices(index)) == 1
    assert {c["index"] for frame in stream.frames for c in frame["choices"]} == {0, 1, 2}


@BOTH
def test_sse_13_usage_is_the_same_streamed_or_not(path: str) -> None:
    api = Api(per_delta=4)
    prompt = "a prompt of more than sixteen tokens"
    body = {"messages": [{"role": "user", "content": prompt}], "prompt": prompt, "max_tokens": 9}
    stream = api.stream(path, **body, stream_options={"include_usage": True})
    assert stream.usages == [api.post(path, body).json["usage"]]
    assert stream.usages[0]["completion_tokens"] == 9
    assert stream.usages[0]["prompt_tokens_details"]["cached_tokens"] >= 16


@BOTH
@pytest.mark.parametrize("plan", [{"fail_after": 3}, {"crash_after": 3}])
def test_a_failure_in_mid_stream_is_an_error_event_and_the_stream_closes(path: str, plan: dict[str, Any]) -> None:
    api = Api(engine=FakeEngine(lambda request: Script(lambda index: ids("abcdefgh"), **plan)))
    stream = api.stream(path)
    assert stream.status == 200
    assert stream.text() == "abc"
    assert stream.events == ["error"]
    assert stream.error is not None
    assert stream.error["type"] == "server_error"
    assert "planted crash" not in stream.error["message"]  # a fault of ours is not shown
    assert not stream.done
    assert stream.finishes() == []
    assert not api.engine.live
    answer = api.post(path, {"messages": HI, "prompt": "1 2 3"})
    assert answer.status == 500
    assert answer.error["type"] == "server_error"


def test_a_failed_choice_ends_its_siblings() -> None:
    api = Api(engine=FakeEngine(lambda request: Script(lambda index: ids("abcdefgh"), fail_after=4)))
    stream = api.stream(n=3)
    assert stream.error is not None
    assert not api.engine.live


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b\x85c", 'quote " \\ \n\r\t\x00', "🦙é"])
def test_a_frame_is_one_line_for_every_reader_of_lines(text: str) -> None:
    stream = Api(text).stream()
    assert stream.text() == text
    for line in stream.raw.decode().split("\n"):
        assert len(line.splitlines()) <= 1


@given(
    said=st.text(max_size=12),
    per_delta=st.integers(1, 5),
    max_tokens=st.integers(1, 24),
    stop=st.lists(st.text(min_size=1, max_size=2), max_size=2),
    coalesce=st.integers(0, 3),
    eos=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_joined_deltas_equal_the_folded_answer(
    said: str, per_delta: int, max_tokens: int, stop: list[str], coalesce: int, eos: bool
) -> None:
    api = Api(said.encode("utf-8", "replace"), per_delta=per_delta, eos=eos, coalesce_after=coalesce)
    fields = {"max_tokens": max_tokens, "stop": stop, "logprobs": 1, "echo": True, "n": 2}
    folded = api.complete(**fields)
    stream = api.stream(COMPLETIONS, **fields)
    for index in range(2):
        choice = folded.json["choices"][index]
        assert stream.text(index) == choice["text"]
        assert stream.finishes(index) == [choice["finish_reason"]]
        for key, whole in choice["logprobs"].items():
            parts = [c["logprobs"][key] for c in stream.choices(index) if c["logprobs"] is not None]
            assert [item for part in parts for item in part] == whole, key
    assert stream.usages == [folded.json["usage"]]
    assert all(string not in folded.text()[len("1 2 3") :] for string in stop)
