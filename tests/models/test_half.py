"""float16 and bfloat16 against the same model in float32 (which others hold against transformers), on both backends."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mlxserve import loader
from mlxserve.backends import get_backend
from mlxserve.backends.batch import host_batch
from mlxserve.engine.interfaces import ForwardBatch
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.tensors import DenseDtype
from mlxserve.models.ops import AttentionLayer
from mlxserve.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, Rope
from tests.models.harness import BACKENDS, Logits, Model
from tests.models.matrix import CASES, Case, make
from tests.models.test_families import CONTROLS

HALVES: tuple[DenseDtype, ...] = ("float16", "bfloat16")
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half the distance from 1 to the next number

# Root mean square of the difference over that of the logits, in units of rounding. A model of four layers rounds about
# forty times one after another. Measured: 3 to 19, and up to 34 where a router chose another expert by a hair; a wrong
# base of RoPE moves them by 117 units of bfloat16.
UNITS = 40

PLAIN = tuple({case.family: case for case in reversed(CASES)}.values())


def logits(path: Path, case: Case, backend: str, dtype: DenseDtype) -> Logits:
    model = Model(open_checkpoint(str(path)), get_backend(backend, dtype), max_model_len=case.max_model_len)  # type: ignore[arg-type]
    if backend == "mlx" and dtype != "float32" and isinstance(model.loaded.spec.layers[0].mlp, MoeSpec):
        pytest.skip("MLX's CPU device multiplies by experts in float32 only")
    return np.concatenate(model.logits(case.token_ids(), "mixed"))


def error(got: Logits, want: Logits) -> float:
    assert np.isfinite(got).all()
    return float(np.sqrt(np.square(got - want).mean() / np.square(want).mean()))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.family)
def test_logits_are_those_of_float32_but_for_rounding(
    case: Case, backend: str, dtype: DenseDtype, tmp_path: Path
) -> None:
    make(case, tmp_path)
    want, got = logits(tmp_path, case, backend, "float32"), logits(tmp_path, case, backend, dtype)
    assert 0 < error(got, want) < UNITS * UNIT[dtype]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_base_is_not_rounding(
    backend: str, dtype: DenseDtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in PLAIN if case.family == "llama")
    make(case, tmp_path)
    want = logits(tmp_path, case, backend, "float32")
    wrong = CONTROLS["rope base doubled"](loader.model_spec(open_checkpoint(str(tmp_path)).config, case.max_model_len))
    monkeypatch.setattr(loader, "model_spec", lambda *_: wrong)
    assert error(logits(tmp_path, case, backend, dtype), want) > 1.5 * UNITS * UNIT[dtype]


# Neither half holds this position (5004 and 4992 are the nearest), nor its product with a rounded frequency.
START, COUNT, WIDTH, BLOCK = 5003, 3, 16, 8192
ROPE = Rope(inv_freq=tuple(10000.0 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)))


def rotated(x: NDArray[np.float32], positions: NDArray[Any], frequencies: NDArray[Any]) -> NDArray[np.float64]:
    """x [T, 1, WIDTH] by the formula, in float64."""
    angles = positions.astype(np.float64)[:, None, None] * frequencies.astype(np.float64)
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate((a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)), -1)


def halved(values: NDArray[Any], dtype: DenseDtype) -> NDArray[Any]:
    """Rounded to ``dtype``."""
    return torch.tensor(values.astype(np.float32)).to(getattr(torch, dtype)).double().numpy()  # type: ignore[no-any-return]


def by_backend(x: NDArray[np.float32], backend: str, dtype: DenseDtype) -> NDArray[np.float32]:
    spec = AttentionSpec(heads=1, kv_heads=1, head_dim=WIDTH, scale=1.0, rope=ROPE)
    layer = LayerSpec(attention=spec, mlp=MlpSpec(width=16, act="silu"))
    model = ModelSpec(family="llama", hidden=16, vocab=8, eps=1e-5, layers=(layer,), max_model_len=BLOCK, tied=True)
    b = get_backend(backend, dtype)  # type: ignore[arg-type]
    positions = array("i", range(START, START + COUNT))
    batch = ForwardBatch(
        tokens=array("i", [0] * COUNT),
        positions=positions,
        slots=positions,
        query_starts=array("i", (0, COUNT)),
        context_lens=array("i", (START + COUNT,)),
        block_tables=[array("i", (0,))],
        late_tokens=[],
        page_copies=[],
        logit_rows=array("i", (COUNT - 1,)),
    )
    on_device = b.new_pool(model, 1, BLOCK).batch(host_batch(batch, BLOCK), None)
    if backend == "torch":
        out = b.ops.rope(torch.tensor(x).to(getattr(torch, dtype)), AttentionLayer(0, spec), on_device)
        return out.float().numpy()  # type: ignore[no-any-return]
    out = b.ops.rope(mx.array(x).astype(getattr(mx, dtype)), AttentionLayer(0, spec), on_device)
    return np.array(out.astype(mx.float32))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_and_frequencies_stay_float32(backend: str, dtype: DenseDtype) -> None:
    x = halved(np.random.default_rng(0).normal(size=(COUNT, 1, WIDTH)), dtype).astype(np.float32)
    positions, frequencies = np.arange(START, START + COUNT), np.array(ROPE.inv_freq)
    want = rotated(x, positions, frequencies)
    # Rounded once or twice on the way out, and the angle is off by at most the spacing of float32 at 5000.
    tolerance = 4 * UNIT[dtype] * float(np.abs(want).max())
    assert np.abs(by_backend(x, backend, dtype) - want).max() < tolerance
    for wrong in (
        rotated(x, halved(positions, dtype), frequencies),
        rotated(x, positions, halved(frequencies, dtype)),
    ):
        assert np.abs(wrong - want).max() > 5 * tolerance, "the test could not tell"
