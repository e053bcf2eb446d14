"""The sixth acceptance criterion: int4 in groups of 64, quantised at load, keeps the best tokens."""

from __future__ import annotations

from mlxserve import LLM
from mlxserve.benchmark import acceptance

EXACT = {"backend": "torch", "dtype": "float32", "cpu_weights": "float32", "max_model_len": 512}


def test_6_int4_keeps_the_top_5() -> None:
    with LLM("smollm2-135m", **EXACT) as exact:
        with LLM("smollm2-135m", **EXACT, quant="int4", group_size=64) as coarse:
            agreement = acceptance.top5_agreement(exact, coarse)
        with LLM("smollm2-135m", **EXACT, quant="int4", group_size=32) as same:
            assert acceptance.top5_agreement(exact, same) == 1, "the file's own groups of 32 must be kept exactly"
    assert 0.80 < agreement < 1
