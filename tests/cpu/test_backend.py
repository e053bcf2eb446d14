"""Whole models on the C++ operators: against transformers, and bit for bit however their sequences are cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserve.backends.torch.native.backend import NativeBackend, covers
from mlxserve.backends.torch.native.library import LOGITS, Library, OperatorKind
from mlxserve.backends.torch.native.ops import Operator
from mlxserve.backends.torch.native.program import assign_places
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.models.families import model_spec
from tests.models.harness import MODES, Logits, Model, difference, oracle
from tests.models.matrix import CASES, Case, make
from tests.tiny import LLAMA, MemoryCheckpoint, make_llama

TOLERANCE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def native_logits(library: Library, path: Path, case: Case, mode: str, block_size: int = 4) -> list[Logits]:
    backend = NativeBackend(library, "int4")
    model = Model(open_checkpoint(str(path)), backend, block_size=block_size, max_model_len=case.max_model_len)
    return model.logits(case.token_ids(), mode)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_families(library: Library, case: Case, tmp_path: Path) -> None:
    """Dense weights: the C++ operators are as exact as torch's."""
    path = make(case, tmp_path)
    if not covers(model_spec(open_checkpoint(str(path)).config, case.max_model_len)):
        pytest.skip("runs on torch's own operators")
    whole = native_logits(library, path, case, "prefill")
    assert difference(whole, oracle(path, case.token_ids())) < TOLERANCE
    for mode in MODES[1:]:
        for found, wanted in zip(native_logits(library, path, case, mode), whole, strict=True):
            assert np.array_equal(found, wanted), mode


def test_what_is_not_covered() -> None:
    def spec(**over: object):  # type: ignore[no-untyped-def]
        return model_spec({**LLAMA, **over}, None)

    assert covers(spec())
    assert not covers(spec(head_dim=24))
    assert not covers(spec(head_dim=272))
    assert not covers(spec(intermediate_size=100))


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_block_size_changes_no_bit(library: Library, tmp_path: Path, block_size: int) -> None:
    path, case = make_llama(tmp_path, attention_bias=True, mlp_bias=True), CASES[0]
    wanted = native_logits(library, path, case, "prefill")
    for found, want in zip(native_logits(library, path, case, "mixed", block_size), wanted, strict=True):
        assert np.array_equal(found, want)


def test_a_new_pool_gets_a_new_program(library: Library) -> None:
    model = Model(MemoryCheckpoint(LLAMA), NativeBackend(library, "int4"))
    first, again = (model.logits([[1, 2, 3], [4]], "prefill") for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=200, deadline=None)
def test_no_value_overwrites_another_that_is_still_read(rows: list[tuple[int, int, int, bool]]) -> None:
    """Every operator reads earlier values; played on an array of owners, each finds its own."""
    operators = [
        Operator(
            kind=OperatorKind.LINEAR_RESIDUAL,
            x=x % i if i else -1,
            residual=residual % i if i and adds else -1,
            out=i,
            width=width,
            of_logits=False,
        )
        for i, (width, x, residual, adds) in enumerate(rows)
    ]
    places, size = assign_places(operators)
    memory = np.full(size, -1)
    for i, op in enumerate(operators):
        for value in (op.x, op.residual):
            if value >= 0:
                assert (memory[places[value] :][: operators[value].width] == value).all()
        if i == len(operators) - 1:
            assert places[op.out] == LOGITS
        else:
            assert places[op.out] + op.width <= size
            memory[places[op.out] :][: op.width] = i
            # Written while its inputs are read.
            assert all((memory[places[v] :][: operators[v].width] == v).all() for v in (op.x, op.residual) if v >= 0)
