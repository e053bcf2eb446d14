"""Stop strings and stop tokens: what is cut, what is counted, and that the engine hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.fakes import EOS, FakeEngine, Script
from tests.api.harness import CHAT, COMPLETIONS, HI, Api
from tests.api.tiny_text import ids

BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def ask(api: Api, path: str, **fields: Any) -> Any:
    return api.post(path, {"messages": HI, "prompt": "1 2 3", **fields})


@BOTH
@pytest.mark.parametrize("per_delta", [1, 2, 3, 50])
def test_stop_01_a_stop_string_over_several_tokens_never_leaks(path: str, per_delta: int) -> None:
    api = Api(" 7 8 9 10 11 12", per_delta=per_delta)
    stream = api.stream(path, stop=["9 10"], max_tokens=24)
    assert stream.text() == " 7 8 "
    assert stream.finishes() == ["stop"]
    answer = ask(api, path, stop=["9 10"], max_tokens=24)
    assert answer.text() == " 7 8 "
    assert answer.json["choices"][0]["finish_reason"] == "stop"


@BOTH
def test_stop_03_a_stop_string_ends_generation_and_the_count(path: str) -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids("abcdefghijklmnop" * 20)))
    api = Api(engine=engine)
    answer = ask(api, path, stop="def", max_tokens=300)
    assert answer.text() == "abc"
    assert answer.json["usage"]["completion_tokens"] == 6
    assert api.engine.aborts == [(engine.requests[0].request_id, 0, 6)]
    assert api.engine.count["decoded"] < 20
    assert api.engine.closed == []


@BOTH
def test_what_follows_a_stop_string_in_the_same_step_does_not_count(path: str) -> None:
    """The engine finishes in the very delta that completes the stop string."""
    api = Api("abcdefgh", per_delta=100)
    answer = ask(api, path, stop="cd", max_tokens=8)
    assert answer.text() == "ab"
    assert answer.json["usage"]["completion_tokens"] == 4
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert api.engine.aborts == []


@BOTH
def test_stop_04_a_single_string_is_a_list_of_one(path: str) -> None:
    api = Api(" 7 8 9 10 11")
    one, many = ask(api, path, stop="9 10"), ask(api, path, stop=["9 10"])
    assert one.text() == many.text() == " 7 8 "
    assert one.json["usage"] == many.json["usage"]


@BOTH
def test_an_empty_list_is_no_stop_and_an_empty_string_is_refused(path: str) -> None:
    api = Api()
    assert ask(api, path, stop=[]).text() == "Hello there"
    for wrong in ("", ["a", ""]):
        api.refused(ask(api, path, stop=wrong), "stop")
    api.refused(ask(api, path, stop=["a"] * 17), "stop")
    api.refused(ask(api, path, stop="a" * 2000), "stop")
    api.refused(ask(api, path, stop=[1]), "stop[0]")


@BOTH
def test_stop_06_the_token_that_ends_a_choice_is_not_text(path: str) -> None:
    """Whatever it is: the end-of-sequence token, or an ordinary one that the request names."""
    api = Api(b"", eos=True)
    answer = ask(api, path, max_tokens=8)
    assert answer.text() == ""
    assert answer.json["usage"]["completion_tokens"] == 1
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    stream = api.stream(path, max_tokens=8)
    assert (stream.text(), stream.finishes()) == ("", ["stop"])


@BOTH
def test_stop_07_min_tokens_holds_back_stop_strings(path: str) -> None:
    api = Api("a b c d e f g")
    answer = ask(api, path, stop=[" "], min_tokens=6, max_tokens=12)
    assert answer.json["usage"]["completion_tokens"] == 8
    assert answer.text() == "a b c d"
    assert api.engine.requests[0].params.min_tokens == 6
    api.refused(ask(api, path, min_tokens=20, max_tokens=10), "min_tokens")


@BOTH
@pytest.mark.parametrize("wrong", [[300], [-1], [10**12], ["x"], [1.5], [True], [10**30], 5, list(range(257))])
def test_stop_09_stop_token_ids_outside_the_vocabulary_are_refused(path: str, wrong: Any) -> None:
    api = Api()
    answer = ask(api, path, stop_token_ids=wrong, min_tokens=1)
    assert answer.status == 400
    assert answer.error["param"].partition("[")[0] == "stop_token_ids"
    assert not api.engine.requests


@BOTH
@pytest.mark.parametrize(
    "wrong", [{"300": 1}, {"-1": 1}, {"x": 1}, {"1": 101}, {"1": "a"}, {"1" * 30: 1}, {"²": 1}, [1]]
)
def test_logit_bias_outside_the_vocabulary_is_refused(path: str, wrong: Any) -> None:
    api = Api()
    answer = ask(api, path, logit_bias=wrong)
    assert answer.status == 400
    assert answer.error["param"] == "logit_bias"
    assert ask(api, path, logit_bias={"299": -100}).status == 200


@BOTH
def test_a_stop_string_ends_one_choice_and_leaves_the_others(path: str) -> None:
    said = {0: "abXcd", 1: "abcdefg", 2: "Xab"}
    engine = FakeEngine(lambda request: Script(lambda index: (*ids(said[index]), EOS)))
    answer = ask(Api(engine=engine), path, n=3, stop="X", max_tokens=20)
    assert [answer.text(index) for index in range(3)] == ["ab", "abcdefg", ""]
    assert answer.json["usage"]["completion_tokens"] == 3 + 8 + 1


@BOTH
def test_held_back_text_is_flushed_when_no_stop_string_follows(path: str) -> None:
    api = Api("ab9 1")
    stream = api.stream(path, stop="9 10", max_tokens=10)
    assert stream.text() == "ab9 1" == ask(api, path, stop="9 10", max_tokens=10).text()
