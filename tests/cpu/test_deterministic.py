"""Equal bits whatever the batch, the chunks, the cache and the threads' luck, through the whole engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from mlxserve import LLM
from mlxserve.backends.torch.native.backend import NativeBackend
from mlxserve.backends.torch.native.library import Library
from mlxserve.formats.checkpoint import open_checkpoint
from tests.backends.test_deterministic import MODES, SHAPE, asks, bits
from tests.models.harness import Model
from tests.tiny import make_llama

COMPOSITIONS = 60


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("deterministic") / "tiny", **SHAPE)


@pytest.fixture(scope="module")
def engines(checkpoint: Path, library_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LLM]]:
    cache = tmp_path_factory.mktemp("cache") / "mlxserve"
    cache.mkdir()
    (cache / library_path.name).symlink_to(library_path)
    options = {"kv_blocks": 256, "max_num_batched_tokens": 256, "max_model_len": 400, "cpu_weights": "int4"}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("XDG_CACHE_HOME", str(cache.parent))
        yield [
            stack.enter_context(LLM(str(checkpoint), backend="torch", **options, **mode))  # type: ignore[arg-type]
            for mode in MODES
        ]


def test_no_bit_differs_in_any_composition(engines: list[LLM]) -> None:
    rng = random.Random(3)
    requests = asks(rng)
    alone = [bits(engines[0].generate([prompt], params)[0]) for prompt, params in requests]
    for turn in range(COMPOSITIONS):
        llm = engines[turn % len(engines)]
        chosen = rng.sample(range(len(requests)), rng.randint(1, 5))
        deltas = llm._deltas(ids := [llm.submit(*requests[i]) for i in chosen])
        for request_id, i in zip(ids, chosen, strict=True):
            one = llm._fold(0, 0, deltas[request_id], starts_text=False)
            assert bits(one) == alone[i], f"request {i} among {chosen} in composition {turn}"


def test_workers_that_come_late_change_nothing(checkpoint: Path, library_path: Path) -> None:
    """Many more threads than cores: most are somewhere else when the others go on."""
    prompts = [np.random.default_rng(i).integers(3, 90, n).tolist() for i, n in enumerate((160, 3, 40))]
    found = []
    for threads in (1, 8):
        library = Library(library_path, threads)
        model = Model(open_checkpoint(str(checkpoint)), NativeBackend(library, "int4"), block_size=8)
        with torch.inference_mode():
            found += [model.logits(prompts, "prefill") for _ in range(1 if threads == 1 else 30)]
        library.close()
    for again in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(again, found[0], strict=True))
