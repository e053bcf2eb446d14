"""GGUF files of every architecture against llama.cpp, whose format it is: they are written as its converter would.

Needs llama-cpp-python, which the core suite does not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxserve.formats.checkpoint import open_checkpoint
from tests.models import gguf_files
from tests.models.gguf_matrix import CASES, NARROW
from tests.models.harness import Logits, Model, difference
from tests.models.matrix import Case, make

llama_cpp: Any = pytest.importorskip("llama_cpp")

TOLERANCE = 1e-4
GELU_TOLERANCE = 1e-3  # its GELU is a table of float16
CONTEXT = 256  # the shortest that it takes; a longrope model uses its long factors then
# It has no window for the architectures llama and phi3.
ALIKE = [case for case in CASES if "window" not in case.option and "short" not in case.option]


def llama_cpp_logits(path: Path, prompts: Sequence[Sequence[int]]) -> list[Logits]:
    """[length, vocabulary] of each prompt, with a float32 cache."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
    assert model
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = params.flash_attn_type = 0  # float32; no flash attention
    batch = llama_cpp.llama_batch_init(CONTEXT, 0, 1)
    out = []
    for prompt in prompts:
        context = llama_cpp.llama_init_from_model(model, params)
        batch.n_tokens = len(prompt)
        for i, token in enumerate(prompt):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(context, batch) == 0
        rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(len(prompt))]
        out.append(np.stack([np.ctypeslib.as_array(row, (vocabulary,)).copy() for row in rows]))
        llama_cpp.llama_free(context)
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_model_free(model)
    return out


@pytest.mark.parametrize("case", ALIKE, ids=lambda case: case.id)
def test_logits_equal_llama_cpp(case: Case, tmp_path: Path) -> None:
    if case.family in ("qwen2", "olmo2"):  # whose heads it takes to have the usual width
        case = replace(case, config={**case.config, **NARROW})
    path = gguf_files.write(make(case, tmp_path), tmp_path / "m.gguf")
    model = Model(open_checkpoint(str(path)), "torch", max_model_len=case.max_model_len)
    got = model.logits(case.token_ids(), "prefill")
    limit = GELU_TOLERANCE if case.family.startswith("gemma") else TOLERANCE
    assert difference(got, llama_cpp_logits(path, case.token_ids())) < limit
