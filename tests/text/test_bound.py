"""The fewest tokens that a text can have: never more than it has, and enough to refuse what cannot fit."""

from __future__ import annotations

import io
import tempfile
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mlxserve.errors import ContextLengthExceeded
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.text.decoding import BYTE_ALPHABET
from mlxserve.text.load import load_text
from mlxserve.text.processor import TextProcessor
from mlxserve.text.sentencepiece import build_backend, read_model
from mlxserve.text.template import ChatTemplate
from mlxserve.text.tokenizer import Tokenizer
from tests.text import tiny

TEMPLATE = "{% for m in messages %}<|endoftext|>{{ m.content }}{% endfor %}"


def with_normalizer(normalizer: normalizers.Normalizer, *added: AddedToken) -> Backend:
    backend = Backend.from_str(tiny.byte_level().to_str())
    backend.normalizer = normalizer
    backend.add_tokens(list(added))
    return backend


@cache
def embedded() -> Tokenizer:
    checkpoint = open_checkpoint("smollm2-135m")
    return load_text(checkpoint.tokenizer, checkpoint.eos_token_ids).tokenizer


@cache
def trained(kind: str, spaces: bool) -> Tokenizer:
    """SentencePiece's own models, read as a ``tokenizer.model`` is; ``spaces``: runs of them are kept."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.CORPUS * 20),
        model_writer=out,
        model_type=kind,
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=not spaces,
        minloglevel=2,
    )
    with tempfile.NamedTemporaryFile(suffix=".model") as file:
        file.write(out.getvalue())
        file.flush()
        model = read_model(Path(file.name))
    return Tokenizer(build_backend(model.pieces, model.rules))


@cache
def few_bytes(unknown: str | None) -> Tokenizer:
    """Most bytes are no token: they vanish, or a run of them is one."""
    letters = "".join(letter for letter in BYTE_ALPHABET if letter in "ehtĠÌģ")
    vocab = {letter: index for index, letter in enumerate(letters)} | ({unknown: len(letters)} if unknown else {})
    backend = Backend(models.BPE(vocab=vocab, merges=[], unk_token=unknown, fuse_unk=unknown is not None))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.normalizer = normalizers.NFC()
    return Tokenizer(backend)


BOUNDED = {
    "bytes that vanish": lambda: few_bytes(None),
    "bytes that are one token": lambda: few_bytes("<unk>"),
    "embedded": embedded,
    "byte-level": lambda: Tokenizer(tiny.byte_level(plain=("<think>",))),
    "byte-level, NFC": lambda: Tokenizer(with_normalizer(normalizers.NFC())),
    "byte-level, NFC and added": lambda: Tokenizer(
        with_normalizer(normalizers.NFC(), AddedToken("<\u212a\u212a>", normalized=True))
    ),
    "byte fallback": lambda: Tokenizer(tiny.byte_fallback()),
    "byte fallback, first": lambda: Tokenizer(tiny.byte_fallback(scheme="first")),
    "sentencepiece bpe": lambda: trained("bpe", True),
    "sentencepiece unigram": lambda: trained("unigram", True),
}
# What is shortened on the way: canonical composition in one and several steps, single characters that become shorter,
# runs that are one token, text that reads as a control token.
HARD = ("e\u0301", "\u212a", "\u0399\u0308\u0301", "\u1fbe\u0308\u0301", "u\u0308\u0304", "\uac00\u11a8", "K\u0301")
HARD += ("▁", "  ", "\n", "the", " quick brown fox", "🦙", "你好", "\x00", "\x04\x06\U00041000")
HARD += ("<|endoftext|>", "<think>", "<\u212a\u212a>")


@pytest.mark.parametrize("kind", BOUNDED)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(HARD) | st.text(max_size=4), max_size=40).map("".join))
def test_no_text_has_fewer(kind: str, text: str) -> None:
    tokenizer = BOUNDED[kind]()
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", BOUNDED)
def test_the_longest_tokens_reach_it(kind: str) -> None:
    """Else the test above would pass for a bound of nothing."""
    tokenizer = BOUNDED[kind]()
    assert tokenizer.least_tokens("the " * 2_500) >= 10_000 // 81
    if kind in ("embedded", "byte-level"):
        longest = max((tokenizer.token_text(i) for i in range(tokenizer.vocab_size)), key=len)
        counted = len(tokenizer.encode(longest * 50, add_special_tokens=False))
        assert counted >= tokenizer.least_tokens(longest * 50) == 50


def test_what_composition_can_shorten() -> None:
    """The two thirds of the bound for NFC, over all of Unicode."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    decomposed = [(c, unicodedata.normalize("NFD", c)) for c in characters]
    size = {c: len(c.encode()) for c in characters}
    assert max(size[c] / len(d.encode()) for c, d in decomposed) == 3
    assert max(len(d.encode()) / size[c] for c, d in decomposed if unicodedata.is_normalized("NFC", c)) == 3


def unbounded() -> dict[str, Backend]:
    dropped = with_normalizer(normalizers.NFC())
    dropped.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), behavior="removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return {
        "unknown words": tiny.word_piece(),
        "unknown characters": tiny.unigram(),
        "a normaliser that drops": with_normalizer(normalizers.Strip()),
        "a normaliser that maps": with_normalizer(normalizers.NFKC()),
        "a replacement that shortens": with_normalizer(normalizers.Replace("  ", " ")),
        "a pattern that may shorten": with_normalizer(normalizers.Replace(Regex(" +"), " ")),
        "a token that takes spaces": with_normalizer(normalizers.NFC(), AddedToken("<mask>", lstrip=True)),
        "spaces dropped before": dropped,
        "runs of spaces made one": trained("bpe", False).backend,
    }


@pytest.mark.parametrize("kind", unbounded())
def test_nothing_is_claimed_where_text_may_vanish(kind: str) -> None:
    assert Tokenizer(unbounded()[kind]).least_tokens("a" * 10_000) == 0


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    text = TextProcessor(tokenizer := embedded(), ChatTemplate(TEMPLATE, {}))
    told: list[int] = []

    def fits(least: int) -> None:
        told.append(least)
        raise ContextLengthExceeded("too many")

    long = "item " * 100_000
    for content in (long, long + "<|endoftext|>"):  # the second one goes by segments
        with pytest.raises(ContextLengthExceeded):
            text.chat_prompt([{"role": "user", "content": content}], fits=fits)
    with pytest.raises(ContextLengthExceeded):
        text.completion_prompt(long, fits)
    assert min(told) >= tokenizer.least_tokens(long) > 5_000
    assert text.completion_prompt("short", fits)
