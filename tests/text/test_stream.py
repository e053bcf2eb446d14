"""The visible text of one choice: stop strings at any split, hold-back, and what counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.text.processor import TextProcessor
from mlxserve.text.stream import OutputStream, Piece
from mlxserve.text.tokenizer import Tokenizer
from tests.text import tiny
from tests.text.test_stops import first_end

BYTES = Tokenizer(tiny.byte_level())


def stream(stop: tuple[str, ...] = (), min_tokens: int = 0, tokenizer: Tokenizer = BYTES) -> OutputStream:
    return OutputStream(tokenizer.decoder(starts_text=True), stop, min_tokens)


def test_without_stops_every_token_counts() -> None:
    output = stream()
    ids = BYTES.encode("the fox")
    assert output.push(ids[:2]).kept == 2
    last = output.push(ids[2:])
    assert (last.stopped, last.kept) == (False, len(ids))
    assert output.push([]) == Piece("", False, len(ids))
    assert output.finish() == ""


def test_stop_01_nothing_of_a_stop_string_is_shown(embedded: TextProcessor) -> None:
    """STOP-01: the digits and the space of "9 10" are tokens of their own."""
    ids = embedded.tokenizer.encode(" 7 8 9 10 11")
    output = embedded.output(("9 10",))
    pieces = []
    for token_id in ids:
        pieces.append(output.push([token_id]))
        if pieces[-1].stopped:
            break
    assert "".join(piece.text for piece in pieces) == " 7 8 "
    assert not any("9" in piece.text for piece in pieces)
    assert pieces[-1].kept == len(pieces) == len(embedded.tokenizer.encode(" 7 8 9 10"))
    assert output.finish() == ""
    assert output.push(ids) == Piece("", True, len(pieces)), "later tokens are neither shown nor counted"


def test_what_only_looked_like_a_stop_is_shown_after_all() -> None:
    output = stream(("foxes", "dog"))
    texts = [output.push([i]).text for i in BYTES.encode("the fox and")]
    assert "".join(texts) + output.finish() == "the fox and"
    output = stream(("foxes",))
    held = "".join(output.push([i]).text for i in BYTES.encode("the fox"))
    assert held == "the ", "it may still become a stop string"
    assert output.finish() == "fox", "and is shown when nothing more comes"


@pytest.mark.parametrize("make", [tiny.byte_level, tiny.byte_fallback, tiny.word_piece])
@given(
    text=st.text(alphabet="ab é🦙", max_size=20),
    stops=st.lists(st.text(alphabet="ab é🦙", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 100), max_size=6),
    min_tokens=st.integers(0, 4),
)
def test_same_text_and_count_at_any_split(
    make: type, text: str, stops: list[str], cuts: list[int], min_tokens: int
) -> None:
    """STOP-01, STOP-07: against a search in the text that all tokens up to each one decode to."""
    tokenizer = Tokenizer(make())
    ids = tokenizer.encode(text)
    output = stream(tuple(stops), min_tokens, tokenizer)
    pieces = [output.push(piece) for piece in tiny.splits(ids, cuts)]
    shown = "".join(piece.text for piece in pieces)
    want = expected(tokenizer, ids, stops, min_tokens)
    if want is None:
        end = shown + output.finish()
        whole = tokenizer.decode(ids)
        assert end == whole or first_end(whole, stops) is not None  # the flushed end of a character may complete one
        assert not any(piece.stopped for piece in pieces)
    else:
        assert (shown, pieces[-1].stopped, pieces[-1].kept) == (want[0], True, want[1])
        assert output.finish() == ""


def expected(tokenizer: Tokenizer, ids: list[int], stops: list[str], min_tokens: int) -> tuple[str, int] | None:
    """The text before the stop string, and the tokens up to the one that completes it; the plain reference."""
    decoder = tokenizer.decoder(starts_text=True)
    text = ""
    for count, token_id in enumerate(ids, 1):
        before = len(text)
        text += decoder.feed([token_id])
        if count > min_tokens and (match := first_end(text, stops, after=before)) is not None:
            return text[: match[0] - match[1]], count
    return None


def test_stop_07_a_stop_counts_after_min_tokens(embedded: TextProcessor) -> None:
    """STOP-07: " 7 8 9" is six tokens; the first space that counts is the seventh."""
    ids = embedded.tokenizer.encode(" 7 8 9 10")
    output = embedded.output((" ",), min_tokens=6)
    pieces = [output.push([token_id]) for token_id in ids]
    assert "".join(piece.text for piece in pieces) == " 7 8 9"
    assert pieces[-1] == Piece("", True, 7)


def test_a_cut_character_before_the_end_is_one_replacement(embedded: TextProcessor) -> None:
    """DET-01: the same streamed and not, with stop strings and without."""
    for stop in ((), ("zzz",)):
        output = embedded.output(stop)
        assert "".join(output.push([i]).text for i in (10813, 116, 243, 10813)) + output.finish() == "🦙\ufffd"


def test_special_tokens_are_not_shown(embedded: TextProcessor) -> None:
    output = embedded.output()
    assert output.push([1, 520, 2]) == Piece(embedded.tokenizer.token_text(520), False, 3)
