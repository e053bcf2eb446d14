"""tokenizer.model files read without SentencePiece, against SentencePiece itself; and every damage one clear error."""

from __future__ import annotations

import contextlib
import io
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.errors import CheckpointError
from mlxserve.text.protobuf import as_number, read_fields
from mlxserve.text.sentencepiece import PieceType, build_backend, read_model
from mlxserve.text.tokenizer import Tokenizer
from tests.text import tiny

sentencepiece = pytest.importorskip("sentencepiece")

KINDS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "byte_fallback": True},
    "bpe, as it is": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
    },
    "bpe, whole pieces": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["▁▁", "<sep>", "\n"],
    },
    "bpe, unknown characters": {"model_type": "bpe", "character_coverage": 0.98},
    "unigram": {"model_type": "unigram", "byte_fallback": True},
    "unigram, whole pieces": {"model_type": "unigram", "user_defined_symbols": ["<sep>"], "pad_id": 3},
}
ODD = ("", " ", "  hi", " the  fox ", "the\nfox\t x", "日本語 ñ", "▁", "\ufb01 ① Å", "a" * 50, "a<sep>b  <sep>")


@cache
def trained(kind: str) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.CORPUS * 20),
        model_writer=out,
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        **KINDS[kind],
    )
    return out.getvalue()


@cache
def both(kind: str, path: Path) -> tuple[Tokenizer, Any]:
    file = path / f"{kind}.model"
    file.write_bytes(trained(kind))
    model = read_model(file)
    roles = {role: model.pieces[index].text for role, index in model.special_ids.items()}
    oracle = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    return Tokenizer(build_backend(model.pieces, model.rules), roles), oracle


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sentencepiece")


@pytest.mark.parametrize("kind", KINDS)
def test_same_ids_as_sentencepiece(kind: str, files: Path) -> None:
    """LOAD-07: tokenizer.model alone."""
    tokenizer, oracle = both(kind, files)
    assert tokenizer.vocab_size == oracle.vocab_size()
    for text in (*tiny.CORPUS, *ODD):
        assert tokenizer.encode(text) == oracle.encode(text), text


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(alphabet="the fox  abé🦙\n1", max_size=30))
def test_same_ids_and_text_on_any_text(kind: str, files: Path, text: str) -> None:
    tokenizer, oracle = both(kind, files)
    ids = oracle.encode(text)
    assert tokenizer.encode(text) == ids
    if oracle.unk_id() not in ids:
        assert tokenizer.decode(ids) == oracle.decode(ids)


def test_roles_and_control_tokens(files: Path) -> None:
    tokenizer, oracle = both("unigram, whole pieces", files)
    assert tokenizer.special_tokens == {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    assert tokenizer.eos_token_ids == (oracle.eos_id(),)
    assert tokenizer.encode("<s>the</s>")[0] == oracle.bos_id(), "control tokens are recognised in text"


def test_normal_pieces_are_the_only_ones_that_merge(files: Path) -> None:
    model = read_model(write(files / "again.model", trained("bpe")))
    assert {piece.type for piece in model.pieces} == {
        PieceType.NORMAL,
        PieceType.UNKNOWN,
        PieceType.CONTROL,
        PieceType.BYTE,
    }


def write(file: Path, data: bytes) -> Path:
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a model",
        b"\x0a\xff\xff\xff\xff\x0f",  # a piece of four gigabytes
        b"\x80" * 20,  # a number without an end
        b"\x0a\x00",  # a piece, but no trainer: fine as protobuf
        b"\x0b",
        b"\x08\x01",
    ],
)
def test_a_damaged_file_is_one_clear_error(data: bytes, tmp_path: Path) -> None:
    """LOAD-07: it names the file."""
    file = write(tmp_path / "tokenizer.model", data)
    if data == b"\x0a\x00":
        assert len(read_model(file).pieces) == 1
        return
    with pytest.raises(CheckpointError, match=r"tokenizer\.model is truncated or corrupt"):
        read_model(file)


@given(place=st.integers(0, 2**14), byte=st.none() | st.binary(min_size=1, max_size=1))
def test_any_damage_is_one_error_or_none(files: Path, place: int, byte: bytes | None) -> None:
    """A file cut short, or with one byte changed."""
    whole = trained("bpe")
    place %= len(whole)
    changed = whole[:place] if byte is None else whole[:place] + byte + whole[place + 1 :]
    file = write(files / "damaged.model", changed)
    with contextlib.suppress(CheckpointError):
        read_model(file)


def test_a_missing_or_huge_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_model(tmp_path / "tokenizer.model")
    monkeypatch.setattr("mlxserve.text.sentencepiece.MAX_BYTES", 3)
    with pytest.raises(CheckpointError, match="has 4 bytes, but may have 3"):
        read_model(write(tmp_path / "tokenizer.model", b"1234"))


def test_wire_format() -> None:
    assert list(read_fields(b"")) == []
    assert list(read_fields(b"\x08\x96\x01")) == [(1, 150)]
    assert list(read_fields(b"\x12\x07testing")) == [(2, b"testing")]
    assert list(read_fields(b"\x15" + struct.pack("<f", 1.5))) == [(2, struct.pack("<f", 1.5))]
    [(_, minus_one)] = read_fields(b"\x08" + b"\xff" * 9 + b"\x01")
    assert as_number(minus_one) == -1
