"""Every row of the matrix against transformers, on both backends, in every way of cutting its tokens into steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxserve.formats.checkpoint import open_checkpoint
from tests.models.harness import BACKENDS, MODES, Logits, Model, difference, oracle
from tests.models.matrix import CASES, Case, make

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Path, list[Logits]]:
    case = request.param
    path = make(case, tmp_path_factory.mktemp(case.family))
    return case, path, oracle(path, case.token_ids())


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_equal_transformers(subject: tuple[Case, Path, list[Logits]], backend: str) -> None:
    """NUM-06: prompts shorter and longer than the window of 8, at once, in chunks and token by token."""
    case, path, want = subject
    model = Model(open_checkpoint(str(path)), backend, max_model_len=case.max_model_len)
    for mode in MODES:
        assert difference(model.logits(case.token_ids(), mode), want) < TOLERANCE, mode
