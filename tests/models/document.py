"""Writes docs/models.md from the matrix: ``python -m tests.models.document``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import mlx.core as mx
from gguf.constants import GGML_QUANT_SIZES

from mlxserve.backends.mlx.ops import MlxOps
from mlxserve.backends.torch.native.weights import packed_bytes
from mlxserve.formats.gguf import TensorInfo
from mlxserve.formats.gguf_blocks import TYPES, outline
from mlxserve.formats.tensors import AffineTensor, DenseTensor
from mlxserve.text.gguf_tokenizer import PRE_TOKENIZERS
from tests.models import gguf_matrix
from tests.models.gguf_files import ARCHITECTURES
from tests.models.matrix import CASES, Case

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"

HEAD = """# Models

Every family and option below is held against transformers on tiny random checkpoints, in float32, on the torch and the
MLX backend (MLX's CPU device), with its tokens computed at once, in chunks, one by one and mixed with other sequences';
the logits differ by less than 1e-4 of the largest. Where a window is named, prompts are several times as long. Each
check is shown to fail when one number of the model is changed. The plain form of every family is also held against
mlx-lm. Nothing here has been run on Metal.

This page is generated from `tests/models/matrix.py` and `gguf_matrix.py` by `python -m tests.models.document`.

| `model_type` | models | also tested |
|---|---|---|
"""

TAIL = """
Weights: Hugging Face safetensors, one file or sharded, in float32, float16 or bfloat16; MLX's affine quantisation with
2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, with overrides for single layers; GGUF as below. A
tensor that is missing, left over or of another shape than the config implies is an error that names it, and so is an
option that a family here does not have.

A head beside a tied embedding is used when it differs from it, and only then, as transformers does.

On the MLX backend any other architecture of mlx-lm's runs too, with mlx-lm's own model class over our pages, when
`mlxserve[mlx]` is installed; the start says so. Tested: starcoder2, stablelm, exaone4, cohere, minicpm3. Such a model
starts some seconds later, since mlx-lm imports transformers. One that keeps more than keys and values (state-space
models, Mamba and its hybrids) runs sequence by sequence, each with mlx-lm's own cache, and the start says that too:
there is no prefix cache then, each choice of a request computes its own prompt, and the memory of the states is outside
the KV pool's limit. Tested against mlx-lm's own generation, alone, batched, preempted, in chunks and with two choices:
mamba, mamba2, falcon_h1, lfm2.

Every family is also run in float16 and bfloat16 and held against itself in float32 (`tests/models/test_half.py`);
positions and frequencies stay in float32. MLX's CPU device has no products with experts in half precision: there,
mixtral and qwen3_moe run in float32 only, which is the default on a CPU.

RoPE: default, linear, dynamic NTK, llama3, YaRN, longrope. Two of these depend on the length of the text in
transformers; here the length that the model is served with (`--max-model-len`) decides once, because cached keys
cannot be rotated again. longrope uses its long factors when that length is beyond the original one, and dynamic NTK
takes the base for that length.
"""


GGUF = """
## GGUF files

| `general.architecture` | `model_type` | also tested |
|---|---|---|
{architectures}
Each is held against transformers on the checkpoint that the file was made from, on both backends, in float32, with the
same bound; where transformers reads the architecture's GGUF files itself, against that too; and against llama.cpp where
llama-cpp-python is installed (Gemma within 1e-3: its GELU there is a table of float16). A window of Mistral or Phi-3 is
kept as in transformers; llama.cpp has none. Another architecture is an error that names it, and so is a key with a
value that the family does not have. What GGUF does not store is taken as llama.cpp takes it: Gemma scales queries by
the width of a head (in 27B by hidden size / heads), Gemma 3 has full attention in every sixth layer, SmolLM3 no
positions in every fourth, Qwen3's experts are normalised. On a GPU `--dtype auto` is float16, for Gemma bfloat16.

| type | bits a weight in the file | kept as | MLX, float16 | C++ operators |
|---|---|---|---|---|
{types}
The last columns are bits a weight in memory, scales included; torch's own operators always take 32. All values are
those of the `gguf` package, bit for bit, where computation is in float32; in float16 scales and expanded values are
rounded to it. Q2_K, Q3_K and Q6_K have groups of 16, which nothing here multiplies by, so they are expanded to floats;
`--quant int8 --group-size 32` keeps these tensors at 8 bits instead, near but not equal. In a Q4_K_M file the output
layer and half of `attn_v` and `ffn_down` are Q6_K; the C++ operators also expand what is multiplied together with such
a tensor (q and k with v). The start and `mlxserve plan` say what the weights take. A type that is not in the table (the
IQ ones among them) is an error that names it.

Pre-tokenisers: {pre_tokenizers}.
SentencePiece vocabularies (`tokenizer.ggml.model` llama) need none. Another is an error that names it.
"""


def text() -> str:
    pre = ", ".join(sorted(name for name in PRE_TOKENIZERS if name is not None))
    gguf = GGUF.format(architectures=architectures(), types=types(), pre_tokenizers=pre)
    return HEAD + rows(CASES, lambda family, models: f"{family} | {models}") + TAIL + gguf


def rows(cases: Iterable[Case], first: Callable[[str, str], str]) -> str:
    """A row a family: two columns, and the options that are tested."""
    out = []
    for family, group in groupby(cases, lambda case: case.family):
        of_family = list(group)
        options = ", ".join(case.option for case in of_family if case.option)
        out.append(f"| {first(family, of_family[0].models)} | {options} |\n")
    return "".join(out)


def architectures() -> str:
    return rows(gguf_matrix.CASES, lambda family, _: f"{ARCHITECTURES[family]} | {family}")


def types() -> str:
    out = []
    for kind in TYPES:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        tensor = outline(TensorInfo("", (1, 256), kind, 0, 256 // block * block_bytes))
        match tensor:
            case AffineTensor(bits=bits, scales=scales):
                form = f"{bits} bits, groups of 32, {scales.dtype} scales"
            case DenseTensor(dtype=dtype):
                form = dtype
        memory = (MlxOps(mx.float16).weight_bytes(tensor), packed_bytes(tensor, "int4"))
        sizes = " | ".join(f"{8 * size / 256:g}" for size in memory)
        out.append(f"| {kind.name} | {8 * block_bytes / block:g} | {form} | {sizes} |\n")
    return "".join(out)


if __name__ == "__main__":
    DOCUMENT.write_text(text())
