"""Tiny tokenizers of each kind, trained on the spot, and directories in Hugging Face form around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "The quick brown fox jumps over the lazy dog. 1 2 3 4 5 6 7 8 9 10",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "你好，世界。今天天气很好。 🦙🦙 🙂 café naïve",
    "def add(a, b):\n    return a + b\n\n\tprint(add(1, 2))",
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    "system user assistant tool model",
)


@cache
def byte_level(specials: tuple[str, ...] = ("<|endoftext|>",), plain: tuple[str, ...] = (), bos: str = "") -> Tokenizer:
    """GPT-2's kind. ``plain``: added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(alphabet), special_tokens=list(specials), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in plain])
    _put_first(tokenizer, bos)
    return tokenizer


@cache
def byte_fallback(
    specials: tuple[str, ...] = ("<unk>", "<s>", "</s>"), strip: bool = True, scheme: str = "prepend", bos: str = ""
) -> Tokenizer:
    """Llama 2's kind: BPE over "▁" with tokens for single bytes. ``scheme`` "prepend" is its normaliser, others are
    Metaspace's."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if scheme == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    end = [decoders.Strip(" ", 1, 0)] if strip else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    words = sorted({char for text in CORPUS for char in text if char.isascii() and char.isprintable()} | {"▁", "é"})
    vocab = {text: index for index, text in enumerate([*specials, *fallback, *(w for w in words if w != " ")])}
    merges = [("▁", "t"), ("▁", "f"), ("t", "h"), ("▁", "th"), ("▁th", "e"), ("o", "x"), ("▁f", "ox"), ("▁", "▁")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer.model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    _put_first(tokenizer, bos)
    return tokenizer


@cache
def unigram(scheme: str = "always", specials: tuple[str, ...] = ("<unk>", "<s>", "</s>")) -> Tokenizer:
    """T5's kind, with the Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=list(specials), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@cache
def word_piece() -> Tokenizer:
    """BERT's kind: a decoder that is not one of bytes."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_directory(
    path: Path,
    tokenizer: Tokenizer,
    *,
    special_tokens: Mapping[str, str] | None = None,
    template: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers reads them."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    write_config(path, {"tokenizer_class": "PreTrainedTokenizerFast", **(special_tokens or {}), **(config or {})})
    if template is not None:
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def splits(items: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    """The items in consecutive runs that end at the cuts."""
    places = sorted({cut % (len(items) + 1) for cut in cuts} | {0, len(items)})
    return [list(items[start:end]) for start, end in itertools.pairwise(places)]


def _put_first(tokenizer: Tokenizer, bos: str) -> None:
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
