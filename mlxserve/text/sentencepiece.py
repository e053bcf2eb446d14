"""SentencePiece vocabularies as ``tokenizers`` pipelines, from a ``tokenizer.model`` file or a GGUF's arrays.

Knows nothing of configuration files beside it. Field numbers: SentencePiece's sentencepiece_model.proto.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mlxserve.errors import CheckpointError
from mlxserve.text.protobuf import Message, as_bytes, as_number, read_fields, read_message

MAX_BYTES = 2**26  # the largest tokenizer.model in use have about 2**22

_SPACE = "▁"
_UNUSED_SCORE = -1e6  # below any path through real pieces


class PieceType(IntEnum):
    """SentencePiece's numbers; GGUF's token types are the same."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Piece(NamedTuple):
    """One vocabulary entry; its id is its place."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How text becomes pieces."""

    unigram: bool = False  # else BPE: the pair whose merged piece has the best score is joined first
    byte_fallback: bool = True
    dummy_prefix: bool = True  # a space is put before the text ...
    prefix_after_control: bool = True  # ... and before what follows a control token
    strip_spaces: bool = False  # runs of spaces become one, none at the ends
    charsmap: bytes = b""  # normalisation, as SentencePiece compiles it
    whole: tuple[str, ...] = ()  # pieces never merged with others nor cut


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a ``tokenizer.model`` holds. ``special_ids``: "unk_token", "bos_token", ... that it names."""

    pieces: tuple[Piece, ...]
    rules: Rules
    special_ids: dict[str, int]


def read_model(path: Path) -> SentencePieceModel:
    """Raises CheckpointError if the file cannot be read or is not a SentencePiece model of a supported kind."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise CheckpointError(f"{path} has {size} bytes, but may have {MAX_BYTES}")
        return _parse(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, struct.error) as error:
        raise CheckpointError(f"{path} is truncated or corrupt: it is not a SentencePiece model ({error})") from error


def build_backend(pieces: Sequence[Piece], rules: Rules) -> Backend:
    """Control and unknown pieces become special tokens that are recognised in text."""
    backend = Backend(_unigram(pieces, rules) if rules.unigram else _bpe(pieces, rules))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(rules.charsmap)] if rules.charsmap else []
    if rules.strip_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if rules.dummy_prefix and rules.prefix_after_control:
        steps.append(normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if rules.dummy_prefix and not rules.prefix_after_control:
        cuts.append(pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False))
    if rules.whole:
        longest_first = sorted(rules.whole, key=len, reverse=True)
        cuts.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), behavior="isolated"))
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    strip = [decoders.Strip(" ", 1, 0)] if rules.dummy_prefix else []
    fallback = [decoders.ByteFallback()] if rules.byte_fallback else []
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), *fallback, decoders.Fuse(), *strip])
    special = [p.text for p in pieces if p.type in (PieceType.CONTROL, PieceType.UNKNOWN)]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return backend


def _unigram(pieces: Sequence[Piece], rules: Rules) -> models.Unigram:
    unknown = next((i for i, piece in enumerate(pieces) if piece.type == PieceType.UNKNOWN), None)
    vocab = [(p.text, _UNUSED_SCORE if p.type == PieceType.UNUSED else p.score) for p in pieces]
    return models.Unigram(vocab, unk_id=unknown, byte_fallback=rules.byte_fallback)


def _bpe(pieces: Sequence[Piece], rules: Rules) -> models.BPE:
    """Merges are not stored: they are all ways to make a piece of two, best score first."""
    normal = {piece.text: (-piece.score, index) for index, piece in enumerate(pieces) if piece.type == PieceType.NORMAL}
    ranked = [
        (rank, text[:cut], text[cut:])
        for text, rank in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    ranked.sort()
    return models.BPE(
        vocab={piece.text: index for index, piece in enumerate(pieces)},
        merges=[(left, right) for _, left, right in ranked],
        unk_token=next((piece.text for piece in pieces if piece.type == PieceType.UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=rules.byte_fallback,
        ignore_merges=bool(rules.whole),  # so that a piece cut out whole is taken whole
    )


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: Message = {}
    normalizer: Message = {}
    for number, value in read_fields(data):
        if number == 1:
            pieces.append(_piece(read_message(value)))
        elif number == 2:
            trainer = read_message(value)
        elif number == 3:
            normalizer = read_message(value)
    kind = as_number(trainer.get(3, 1))
    if kind not in (1, 2) or not pieces:
        raise ValueError(f"it has {len(pieces)} pieces and model type {kind}; 1 (unigram) and 2 (BPE) are supported")
    rules = Rules(
        unigram=kind == 1,
        byte_fallback=bool(as_number(trainer.get(35, 0))),
        dummy_prefix=bool(as_number(normalizer.get(3, 1))),
        strip_spaces=bool(as_number(normalizer.get(4, 1))),
        charsmap=as_bytes(normalizer.get(2, b"")),
        whole=tuple(piece.text for piece in pieces if piece.type == PieceType.USER_DEFINED),
    )
    fields = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
    ids = {role: as_number(trainer.get(field, default)) for role, (field, default) in fields.items()}
    return SentencePieceModel(tuple(pieces), rules, {r: i for r, i in ids.items() if 0 <= i < len(pieces)})


def _piece(message: Message) -> Piece:
    text, score = as_bytes(message.get(1, b"")), as_bytes(message.get(2, bytes(4)))
    return Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], as_number(message.get(3, PieceType.NORMAL)))
