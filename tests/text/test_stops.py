"""The stop string matcher against a search of the whole text at every character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.text.stops import Match, StopMatcher

# Few letters, so that stops overlap themselves and each other.
texts = st.text(alphabet="abc", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def first_end(text: str, stops: list[str], after: int = 0) -> tuple[int, int] | None:
    """End and length of the match that ends first beyond ``after``, the longest of those; the plain reference."""
    for end in range(after + 1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end, max(lengths)
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that begins a stop string without being one."""
    return max(n for n in range(len(text) + 1) for stop in stops if text.endswith(stop[:n]) and n < len(stop))


@given(pieces=st.lists(texts, max_size=8), stops=stop_lists)
def test_finds_what_a_search_finds_at_any_split(pieces: list[str], stops: list[str]) -> None:
    """STOP-01: a stop string that spans pieces is found, and what may begin one is held back until it is known."""
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        match = matcher.feed(piece)
        want = first_end(text + piece, stops)
        if want is not None:
            assert match == Match(want[0] - len(text), want[1])
            return
        assert match is None
        text += piece
        assert matcher.held == longest_beginning(text, stops)


@given(early=texts, late=texts, stops=stop_lists)
def test_what_ends_before_it_is_armed_does_not_count(early: str, late: str, stops: list[str]) -> None:
    """STOP-07: but a stop string may begin there and end later."""
    matcher = StopMatcher(stops)
    assert matcher.feed(early, armed=False) is None
    assert matcher.held == longest_beginning(early, stops), "nothing more is held back than may still match"
    want = first_end(early + late, stops, after=len(early))
    match = matcher.feed(late)
    assert match == (None if want is None else Match(want[0] - len(early), want[1]))


def test_the_stop_that_ends_first_wins() -> None:
    assert StopMatcher(["abcd", "bc"]).feed("abcd") == Match(3, 2)
    assert StopMatcher(["bc", "abc"]).feed("abc") == Match(3, 3), "of those that end together, the longest"


def test_an_empty_stop_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        StopMatcher([""])


def test_long_repetitive_stops_cost_no_more_than_the_text() -> None:
    matcher = StopMatcher(["a" * 5000 + "b"])
    assert all(matcher.feed("aaaa") is None for _ in range(5000))
    assert matcher.held == 5000
    assert matcher.feed("b") == Match(1, 5001)
