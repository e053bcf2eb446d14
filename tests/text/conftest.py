"""What several of these tests share: the embedded model's text side, and transformers reading the same file."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from mlxserve.formats.checkpoint import embedded_model_path, open_checkpoint
from mlxserve.text.load import load_text
from mlxserve.text.processor import TextProcessor


@pytest.fixture(scope="session")
def embedded() -> TextProcessor:
    checkpoint = open_checkpoint("smollm2-135m")
    return load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)


@pytest.fixture(scope="session")
def embedded_oracle() -> Any:
    from transformers import AutoTokenizer

    path = embedded_model_path()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the oracle's own deprecations are not ours
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
