"""Pre-tokenisers against llama.cpp, which gave them their names.

Needs llama-cpp-python, which the core suite does not.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from mlxserve.text.gguf_tokenizer import PRE_TOKENIZERS, build_tokenizer
from tests.text.test_gguf_tokenizer import byte_level

llama_cpp: Any = pytest.importorskip("llama_cpp")
SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)  # its own fails on half a character

PARTS = (
    "the",
    " fox",
    "'s",
    "'LL",
    " ",
    "  ",
    "\n",
    "\r\n",
    "1",
    "1234",
    "a",
    "E",
    "日本",
    "!?",
    "...\n",
    "\t",
    "🦙",
    " 7",
)
NAMES = sorted({*filter(None, PRE_TOKENIZERS)} - {"gpt2", "llama3"})  # those two are other names


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randrange(9))) for _ in range(count)]


def vocabulary(pre: str) -> GGUFTokenizer:
    """Of merges across every boundary that a pre-tokeniser may draw, so that a wrong one shows."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts(2000, seed=1), trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    return replace(
        byte_level("gpt-2"),
        pre=pre,
        tokens=tuple(tokens),
        token_types=np.ones(len(tokens), np.int32),
        merges=merges,
        special_ids={},
    )


def encoder(words: GGUFTokenizer, path: Path) -> Callable[[str], list[int]]:
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.pre or "")
    writer.add_token_list(list(words.tokens))
    writer.add_token_types([1] * len(words.tokens))
    writer.add_token_merges(list(words.merges or ()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    llama_cpp.llama_log_set(SILENT, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    assert model, path
    ids = (llama_cpp.llama_token * 512)()

    def encode(text: str) -> list[int]:
        data = text.encode()
        vocab = llama_cpp.llama_model_get_vocab(model)
        return list(ids[: llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), False, False)])

    return encode


def differing(name: str, other: str, path: Path) -> int:
    """Of 500 texts, those that ``name`` here and ``other`` there cut differently."""
    ours, theirs = build_tokenizer(vocabulary(name)), encoder(vocabulary(other), path)
    return sum(ours.encode(text, add_special_tokens=False) != theirs(text) for text in texts(500, seed=2))


@pytest.mark.parametrize("name", NAMES)
def test_text_is_cut_as_llama_cpp_cuts_it(name: str, tmp_path: Path) -> None:
    assert differing(name, name, tmp_path / "v.gguf") == 0


def test_another_pattern_would_be_seen(tmp_path: Path) -> None:
    """Of the four patterns that there are: Llama 3's is dbrx's too, refact's smollm's."""
    for i, (name, other) in enumerate(itertools.permutations(("gpt-2", "llama-bpe", "qwen2", "refact"), 2)):
        assert differing(name, other, tmp_path / f"{i}.gguf") > 0, (name, other)
