"""Writes docs/models.md from the matrix: ``python -m tests.models.document``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tests.models.matrix import CASES

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"

HEAD = """# Models

Every family and option below is held against transformers on tiny random checkpoints, in float32, on the torch and the
MLX backend (MLX's CPU device), with its tokens computed at once, in chunks, one by one and mixed with other sequences';
the logits differ by less than 1e-4 of the largest. Where a window is named, prompts are several times as long. Each
check is shown to fail when one number of the model is changed. The plain form of every family is also held against
mlx-lm. Nothing here has been run on Metal.

This page is generated from `tests/models/matrix.py` by `python -m tests.models.document`.

| `model_type` | models | also tested |
|---|---|---|
"""

TAIL = """
Weights: Hugging Face safetensors, one file or sharded, in float32, float16 or bfloat16; MLX's affine quantisation with
2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, with overrides for single layers; GGUF for the llama family. A
tensor that is missing, left over or of another shape than the config implies is an error that names it, and so is an
option that a family here does not have.

A head beside a tied embedding is used when it differs from it, and only then, as transformers does.

On the MLX backend any other architecture of mlx-lm's runs too, with mlx-lm's own model class over our pages, when
`mlxserve[mlx]` is installed; the start says so. Tested: starcoder2, stablelm, exaone4, cohere, minicpm3. Such a model
starts some seconds later, since mlx-lm imports transformers. One that keeps more than keys and values (state-space
models, Mamba and its hybrids) is refused by name.

RoPE: default, linear, dynamic NTK, llama3, YaRN, longrope. Two of these depend on the length of the text in
transformers; here the length that the model is served with (`--max-model-len`) decides once, because cached keys
cannot be rotated again. longrope uses its long factors when that length is beyond the original one, and dynamic NTK
takes the base for that length.
"""


def text() -> str:
    rows = []
    for family, group in groupby(CASES, lambda case: case.family):
        cases = list(group)
        options = ", ".join(case.option for case in cases if case.option)
        rows.append(f"| {family} | {cases[0].models} | {options} |\n")
    return HEAD + "".join(rows) + TAIL


if __name__ == "__main__":
    DOCUMENT.write_text(text())
