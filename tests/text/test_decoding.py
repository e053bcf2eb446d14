"""Token ids to text: pieces joined equal the whole, for every kind of decoder and every way to cut the ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from mlxserve.text.decoding import BYTE_ALPHABET, ByteDecoder, WholeDecoder, byte_rule
from mlxserve.text.processor import TextProcessor
from mlxserve.text.tokenizer import Tokenizer
from tests.text import tiny

KINDS: dict[str, Callable[[], Backend]] = {
    "byte-level": lambda: tiny.byte_level(plain=("<tool>", "  ")),
    "byte fallback": tiny.byte_fallback,
    "byte fallback, no strip": lambda: tiny.byte_fallback(strip=False, scheme="never"),
    "metaspace": tiny.unigram,
    "metaspace, never": lambda: tiny.unigram("never"),
    "word pieces": tiny.word_piece,
}
ids_lists = st.lists(st.integers(0, 10**6), max_size=40)
cut_lists = st.lists(st.integers(0, 100), max_size=8)


def streamed(tokenizer: Tokenizer, pieces: list[list[int]], starts_text: bool = True) -> list[str]:
    decoder = tokenizer.decoder(starts_text=starts_text)
    return [*(decoder.feed(piece) for piece in pieces), decoder.flush()]


def is_text(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether the tokens' bytes, joined, are valid UTF-8."""
    try:
        b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i)).decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@given(ids=ids_lists, cuts=cut_lists)
def test_joined_pieces_equal_the_whole(kind: str, ids: list[int], cuts: list[int]) -> None:
    """DET-01, DET-03: whatever the cuts, and equal to the package's own decoder on all that is text."""
    tokenizer = Tokenizer(KINDS[kind]())
    ids = [token_id % tokenizer.vocab_size for token_id in ids]
    whole = tokenizer.decode(ids)
    assert "".join(streamed(tokenizer, tiny.splits(ids, cuts))) == whole
    if kind == "byte-level" or is_text(tokenizer, ids):
        assert whole == tokenizer.backend.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=20))
@settings(max_examples=50)
def test_text_comes_back(kind: str, text: str) -> None:
    """The oracle of encoding and decoding together: the package's own round trip."""
    tokenizer = Tokenizer(KINDS[kind]())
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.backend.decode(ids, skip_special_tokens=True)
    if kind == "byte-level":
        assert tokenizer.decode([i for i in ids if not tokenizer.is_special(i)]) == text.replace("<|endoftext|>", "")


@given(ids=ids_lists, cuts=cut_lists)
def test_no_piece_ends_inside_a_character(ids: list[int], cuts: list[int]) -> None:
    """DET-01: what is shown stands: no U+FFFD but for bytes that are none of UTF-8, and at the very end."""
    tokenizer = Tokenizer(tiny.byte_level())
    ids = [token_id % tokenizer.vocab_size for token_id in ids]
    *pieces, _ = streamed(tokenizer, tiny.splits(ids, cuts))
    whole = b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i))
    shown = "".join(pieces)
    assert whole.decode("utf-8", "replace").startswith(shown)
    if is_text(tokenizer, ids):
        assert "\ufffd" not in shown or b"\xef\xbf\xbd" in whole


def test_det_01_a_character_of_several_tokens_is_shown_once_it_is_whole(embedded: TextProcessor) -> None:
    llama = [10813, 116, 243]
    assert streamed(embedded.tokenizer, [[i] for i in llama * 2]) == ["", "", "🦙", "", "", "🦙", ""]
    assert streamed(embedded.tokenizer, [llama[:2]]) == ["", "\ufffd"], "a cut character is one U+FFFD"
    assert embedded.tokenizer.decode(llama[:2]) == "\ufffd"
    assert embedded.tokenizer.decode([*llama[:2], *llama]) == "\ufffd🦙"


def test_det_04_output_after_half_a_character_of_prompt(embedded: TextProcessor) -> None:
    """The prompt's own bytes are not looked at: what completes its character is no character by itself."""
    assert streamed(embedded.tokenizer, [[243], [216], [10813, 116, 243]], starts_text=False) == [
        "\ufffd",
        " ",
        "🦙",
        "",
    ]


@pytest.mark.parametrize("kind", ["byte fallback", "metaspace"])
def test_det_03_the_space_before_a_continuation_is_kept(kind: str) -> None:
    """SentencePiece's decoders drop the first space of a text; output that continues a prompt is not its start."""
    tokenizer = Tokenizer(KINDS[kind]())
    ids = tokenizer.encode("the fox")
    assert "".join(streamed(tokenizer, [[i] for i in ids], starts_text=False)) == " the fox"
    assert "".join(streamed(tokenizer, [[i] for i in ids])) == "the fox"
    space = tokenizer.backend.token_to_id("▁")
    assert tokenizer.decode([space, space, *ids]) == tokenizer.backend.decode([space, space, *ids])


def test_det_03_byte_level_tokens_keep_every_space(embedded: TextProcessor) -> None:
    for text in (" fox jumps", " 7 8 9", "  two", "\n x", " "):
        for starts in (True, False):
            ids = embedded.tokenizer.encode(text)
            assert "".join(streamed(embedded.tokenizer, [[i] for i in ids], starts)) == text


def test_det_06_bytes_of_half_characters_are_exact(embedded: TextProcessor) -> None:
    tokenizer = embedded.tokenizer
    assert b"".join(tokenizer.token_bytes(i) for i in (10813, 116, 243)) == "🦙".encode()
    assert tokenizer.token_bytes(243) != "\ufffd".encode()
    assert tokenizer.token_text(243) == "\ufffd"
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b"", "rows of padding in the embedding"
    assert all(tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size))


def test_det_06_bytes_with_byte_fallback() -> None:
    tokenizer = Tokenizer(tiny.byte_fallback())
    ids = tokenizer.encode("é🦙 x")
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == " é🦙 x".encode()


def test_a_cut_character_with_byte_fallback_is_one_replacement() -> None:
    """The package itself would write one for each byte of the run."""
    tokenizer = Tokenizer(tiny.byte_fallback())
    half = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "🦙".encode()[:3]]
    assert streamed(tokenizer, [[i] for i in half]) == ["", "", "", "\ufffd"]
    assert tokenizer.decode(half) == "\ufffd"


def test_the_byte_alphabet_is_the_packages() -> None:
    from tokenizers import pre_tokenizers

    assert set(BYTE_ALPHABET) == set(pre_tokenizers.ByteLevel.alphabet())
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for code in range(0x80):
        [(spelt, _)] = pre.pre_tokenize_str(chr(code))
        assert bytes(BYTE_ALPHABET[char] for char in spelt) == bytes([code])


@pytest.mark.parametrize(
    ("decoder", "is_bytes"),
    [
        (decoders.ByteLevel(), True),
        (decoders.Metaspace(), True),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]), True),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]), True),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)]), True),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]), False),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip("x", 1, 0)]), False),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), False),
        (decoders.BPEDecoder(), False),
        (decoders.CTC(), False),
        (None, False),
    ],
)
def test_which_decoders_are_tables_of_bytes(decoder: Any, is_bytes: bool) -> None:
    backend = Backend(tiny.unigram().model)
    backend.decoder = decoder
    assert (byte_rule(backend) is not None) == is_bytes
    assert isinstance(Tokenizer(backend).decoder(starts_text=True), ByteDecoder if is_bytes else WholeDecoder)
