"""transformers on the embedded model's own GGUF file, in float32: what the engine's answers are held against."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mlxserve.formats.checkpoint import open_checkpoint


@cache
def oracle_model() -> Any:
    from transformers import AutoModelForCausalLM

    path = Path(open_checkpoint("smollm2-135m").path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the oracle's own deprecations are not ours
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@cache
def oracle_tokenizer() -> Any:
    from transformers import AutoTokenizer

    path = Path(open_checkpoint("smollm2-135m").path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@torch.inference_mode()
def logits(ids: list[int]) -> torch.Tensor:
    """[len(ids), vocabulary] float32: row i is what follows ids[: i + 1]."""
    return oracle_model()(torch.tensor([ids])).logits[0]
