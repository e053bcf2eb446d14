"""Tokenizers built from GGUF metadata: the embedded model's and made-up ones of each kind."""

from __future__ import annotations

import io
import json
import time
import warnings
from dataclasses import replace
from functools import cache
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from mlxserve.text.gguf_tokenizer import build_tokenizer
from mlxserve.text.processor import TextProcessor
from tests.text import tiny

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<｜begin▁of▁sentence｜>")
USER_DEFINED = ("<think>", "</think>")
TEXT = "It's 12345 and 6,  don't\n\n\tHELLO'LL you're naïve 你好 🦙 x1y22 e\u0301 ...!?  "


@cache
def byte_level(pre: str | None = "gpt-2") -> GGUFTokenizer:
    """The byte-level vocabulary of the tests as a GGUF file holds it."""
    backend = tiny.byte_level(CONTROL)
    model = json.loads(backend.model.__getstate__())
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [3 if token in CONTROL else 1 for token in tokens] + [4] * len(USER_DEFINED)
    return GGUFTokenizer(
        model="gpt2",
        pre=pre,
        tokens=(*tokens, *USER_DEFINED),
        token_types=np.array(types, np.int32),
        scores=None,
        merges=tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]),
        special_ids={"bos": 1, "eos": 2, "padding": 0},
        add_bos=None,
        add_eos=None,
        add_space_prefix=None,
        chat_template=None,
        named_templates={},
    )


def as_transformers(gguf: GGUFTokenizer) -> Any:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    assert gguf.token_types is not None
    fields = {
        "tokenizer_type": gguf.model,
        "pre_tokenizer_type": gguf.pre,
        "tokens": list(gguf.tokens),
        "merges": list(gguf.merges or ()),
        "token_type": gguf.token_types.tolist(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the oracle's own deprecations are not ours
        return convert_gguf_tokenizer("llama", fields)[0]


# The embedded model.

# transformers does not split digits from what precedes them, which the model's own tokenizer and llama.cpp do. In
# ASCII that makes no difference.
any_text = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["N"]) | st.sampled_from("0123456789"))


@given(text=any_text)
@settings(max_examples=300)
def test_encodes_as_transformers_does(embedded: TextProcessor, embedded_oracle: Any, text: str) -> None:
    assert embedded.tokenizer.encode(text) == embedded_oracle.encode(text)


@given(ids=st.lists(st.integers(0, 49151), max_size=20))
@settings(max_examples=300)
def test_decodes_as_transformers_does(embedded: TextProcessor, embedded_oracle: Any, ids: list[int]) -> None:
    """DET-01, DET-03."""
    assert embedded.tokenizer.decode(ids) == embedded_oracle.decode(ids, skip_special_tokens=True)


def test_the_embedded_tokenizer(embedded: TextProcessor) -> None:
    tokenizer = embedded.tokenizer
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert tokenizer.fim_tokens is None
    assert tokenizer.encode("<|im_start|>x<|im_end|>") == [1, 104, 2], "no BOS, and control tokens recognised"
    assert tokenizer.encode(" ²") == tokenizer.encode(" ") + tokenizer.encode("²"), "each digit is by itself"
    assert [i for i in range(49152) if tokenizer.is_special(i)] == list(range(17))


def test_building_the_embedded_tokenizer_is_quick() -> None:
    gguf = open_checkpoint("smollm2-135m").tokenizer
    assert isinstance(gguf, GGUFTokenizer)
    start = time.process_time()
    build_tokenizer(gguf)
    assert time.process_time() - start < 0.7


# Byte-level vocabularies.


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
@given(text=any_text | st.just(TEXT))
def test_pre_tokenisers_split_as_in_transformers(pre: str, text: str) -> None:
    gguf = byte_level(pre)
    tokenizer, oracle = build_tokenizer(gguf), oracle_of(pre)
    if pre == "qwen2":  # the model's own tokenizer composes characters, which transformers leaves out here
        assert tokenizer.encode(text) == oracle.encode(normalize("NFC", text)).ids
    else:
        assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text, add_special_tokens=False).ids


@cache
def oracle_of(pre: str) -> Any:
    return as_transformers(byte_level(pre))


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "ĠHELLO", "'", "LL", "Ġ", "Ġ."]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠHELLO", "'", "LL", "Ġ", "Ġ."]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "ĠHELLO", "'LL", "Ġ", "Ġ."]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠHELLO", "'LL", "Ġ", "Ġ."]),
    ],
)
def test_what_each_pre_tokeniser_takes_for_a_word(pre: str, words: list[str]) -> None:
    pre_tokenizer = build_tokenizer(byte_level(pre)).backend.pre_tokenizer
    assert [word for word, _ in pre_tokenizer.pre_tokenize_str("It's 12345 HELLO'LL  .")] == words


def test_words_that_are_tokens_are_taken_whole_by_llama_3() -> None:
    """Its tokenizer looks words up before it merges."""
    gguf = byte_level("llama-bpe")
    assert gguf.token_types is not None
    longer = replace(gguf, tokens=(*gguf.tokens, "zqzq"), token_types=np.append(gguf.token_types, 1))
    assert build_tokenizer(longer).encode("zqzq", add_special_tokens=False) == [len(gguf.tokens)]
    assert len(build_tokenizer(replace(longer, pre="qwen2")).encode("zqzq")) > 1


def test_control_and_user_defined_tokens() -> None:
    tokenizer = build_tokenizer(byte_level())
    for text in (*CONTROL, *USER_DEFINED):
        assert [tokenizer.token_text(i) for i in tokenizer.encode(text)] == [text]
        assert tokenizer.is_special(tokenizer.encode(text)[0]) == (text in CONTROL)
    assert tokenizer.decode(tokenizer.encode("<|im_start|><think>x</think>")) == "<think>x</think>"
    assert tokenizer.eos_token_ids == (2,)


def test_ends_of_turns_end_answers_whatever_the_file_calls_eos() -> None:
    tokenizer = build_tokenizer(replace(byte_level(), special_ids={"eos": 0, "eot": 1}), eos_token_ids=[7])
    assert tokenizer.eos_token_ids == (0, 1, 2, 7)


@pytest.mark.parametrize(
    ("changes", "first", "last"),
    [
        ({}, None, None),
        ({"pre": "llama-bpe"}, 1, None),
        ({"pre": "llama-bpe", "add_bos": False}, None, None),
        ({"add_bos": True}, 1, None),
        ({"add_bos": True, "add_eos": True}, 1, 2),
        ({"add_bos": True, "special_ids": {}}, None, None),
    ],
)
def test_what_encode_adds(changes: dict[str, Any], first: int | None, last: int | None) -> None:
    tokenizer = build_tokenizer(replace(byte_level(), **changes))
    inner = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [*([] if first is None else [first]), *inner, *([] if last is None else [last])]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pre": "deepseek-v9"}, "'deepseek-v9', which is not supported"),
        ({"pre": None}, "tokenizer.ggml.pre is None"),
        ({"model": "rwkv"}, "'rwkv'"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ("a",)}, "'a'"),
        ({"merges": ("a b c",)}, "'a b c'"),
        ({"merges": ("nope nada",)}, "'nope nada'"),
        ({"model": "llama"}, "tokenizer.ggml.scores"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError) as error:
        build_tokenizer(replace(byte_level(), **changes))
    assert says in error.value.message


# SentencePiece vocabularies.


@cache
def sentencepiece_pair() -> tuple[GGUFTokenizer, Any]:
    sentencepiece = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.CORPUS * 20),
        model_writer=out,
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    ids = range(model.vocab_size())
    types = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in ids]
    gguf = replace(
        byte_level(),
        model="llama",
        pre="default",
        tokens=tuple(model.id_to_piece(i) for i in ids),
        token_types=np.array(types, np.int32),
        scores=np.array([model.get_score(i) for i in ids], np.float32),
        merges=None,
        special_ids={"bos": 1, "eos": 2, "unknown": 0},
    )
    return gguf, model


@given(text=st.text(alphabet="the fox  abé🦙\n1", max_size=30))
def test_sentencepiece_vocabularies_encode_as_sentencepiece(text: str) -> None:
    _, oracle = sentencepiece_pair()
    ids = [1, *oracle.encode(text)]
    assert built_sentencepiece().encode(text) == ids, "with BOS, as llama.cpp has it where the file doesn't say"
    assert built_sentencepiece().decode(ids) == oracle.decode(ids)


@cache
def built_sentencepiece() -> Any:
    return build_tokenizer(sentencepiece_pair()[0])


def test_scores_and_not_places_decide_what_merges_first() -> None:
    gguf, oracle = sentencepiece_pair()
    assert gguf.token_types is not None
    assert gguf.scores is not None
    order = [0, 1, 2, *reversed(range(3, len(gguf.tokens)))]
    turned = replace(
        gguf,
        tokens=tuple(gguf.tokens[i] for i in order),
        token_types=gguf.token_types[order],
        scores=gguf.scores[order],
    )
    tokenizer = build_tokenizer(turned)
    for text in tiny.CORPUS:
        assert [turned.tokens[i] for i in tokenizer.encode(text)] == ["<s>", *oracle.encode(text, out_type=str)]


def test_a_sentencepiece_vocabulary_without_the_first_space() -> None:
    gguf, _ = sentencepiece_pair()
    tokenizer = build_tokenizer(replace(gguf, add_space_prefix=False, add_bos=False))
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"
    assert tokenizer.decode(tokenizer.encode("the")) == "the"


def test_user_defined_pieces_of_a_sentencepiece_vocabulary() -> None:
    gguf, _ = sentencepiece_pair()
    assert gguf.token_types is not None
    assert gguf.scores is not None
    size = len(gguf.tokens)
    wider = replace(
        gguf,
        tokens=(*gguf.tokens, "<turn>", "▁▁▁▁▁"),
        token_types=np.append(gguf.token_types, [4, 4]),
        scores=np.append(gguf.scores, [-1000, -1000]),
    )
    tokenizer = build_tokenizer(wider)
    assert size in tokenizer.encode("a<turn>b")
    assert size + 1 in tokenizer.encode("a     b")
    assert tokenizer.decode(tokenizer.encode("a     b")) == "a     b"


RUNS = ["\n", "\n\n", "\n\n\n", *("▁" * n for n in range(2, 9))]


@cache
def gemma_pair() -> tuple[GGUFTokenizer, Any]:
    """A vocabulary as Gemma's, with its runs of spaces and line ends, and as the converter writes it: those runs are
    user-defined pieces with plain spaces."""
    sentencepiece = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.CORPUS * 20),
        model_writer=out,
        vocab_size=420,
        hard_vocab_limit=False,
        minloglevel=2,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        user_defined_symbols=["<start_of_turn>", *RUNS],
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    types = [2 if model.is_unknown(i) else 6 if model.is_byte(i) else 1 for i in range(len(pieces))]
    for i, piece in enumerate(pieces):
        if model.is_control(i) or piece == "<start_of_turn>":
            types[i] = 3
        elif piece in RUNS:
            types[i] = 4
            pieces[i] = piece.replace("▁", " ")
    gguf = replace(
        sentencepiece_pair()[0],
        tokens=tuple(pieces),
        token_types=np.array(types, np.int32),
        scores=np.array([model.get_score(i) for i in range(len(pieces))], np.float32),
        add_space_prefix=False,
        add_bos=True,
    )
    return gguf, model


@cache
def built_gemma() -> Any:
    return build_tokenizer(gemma_pair()[0])


@given(
    parts=st.lists(st.sampled_from([*"ab1é🦙 ", "the", " fox", "23", "  ", "   ", " " * 10, "\n", "\n\n"]), max_size=8)
)
def test_a_vocabulary_like_gemma_encodes_as_sentencepiece(parts: list[str]) -> None:
    text = "".join(parts)
    ids = built_gemma().encode(text)
    assert ids == [1, *gemma_pair()[1].encode(text)]
    assert built_gemma().decode(ids[1:]) == text
