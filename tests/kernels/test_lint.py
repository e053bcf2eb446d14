"""Our kernels keep Metal's address spaces, by clang; a mistake of each kind is found."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernels.sim.lint import LintError, check, find_clang, linted
from mlxserve.backends.mlx.kernels import Heads, Kernels
from tests.kernels.cases import Attention, Qmv, Rope

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(find_clang() is None and not os.environ.get("CI"), reason="no clang here; CI requires it"),
]

DTYPES = pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)


@DTYPES
def test_qmv(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(0)
    forms: list[dict[str, Any]] = [{}, {"norm": True, "act": "silu"}, {"bits": 8, "bias": True, "residual": True}]
    for form in forms:
        case = replace(Qmv(4, 64, 128, dtype), **form)
        x, options = case.arguments(rng)
        Kernels(linted).qmv(x, case.weight(rng), **options)


@DTYPES
def test_attention(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(0)
    for case in (Attention((20,), (1,), dtype=dtype), Attention((40,), (2,), heads=16, dim=80, chunk=16, dtype=dtype)):
        keys, values, tables = case.pages(rng)
        q = mx.zeros((sum(case.queries), case.heads, case.dim), dtype)
        Kernels(linted).attention(q, keys, values, case.plan(tables), **case.options(rng))


@DTYPES
def test_rope(dtype: mx.Dtype) -> None:
    case = Rope(9, Heads(2, 1, 64), rot=32, dtype=dtype)
    qkv, positions, rotary, norms = case.arguments(np.random.default_rng(0))
    kernels = Kernels(linted)
    kernels.qk_norm_rope(qkv, positions, rotary, case.heads, norms)
    pages = mx.zeros((4, 1, 16, 64), dtype)
    kernels.kv_write(qkv, positions, rotary, case.heads, norms, positions, pages, pages, mx.zeros((8,)))


KERNEL = "void k(const device float* a, device float* o, uint i) {{ {} }}"


@pytest.mark.parametrize(
    "body",
    [
        "const float* p = a; o[i] = p[i];",  # no device
        "threadgroup float s[8]; device float* p = s; o[i] = p[i];",  # device where threadgroup is
        "float t[2] = {1, 2}; const device float* p = t; o[i] = p[0];",  # a private array is in no device
        "o[i] = *(const float4*)(a + i)[0].x;",  # a cast that drops the space
        "o[i] = max(a[i], half(1));",  # ambiguous in Metal
        "float4 v = float4(0.0f); float& x = v[1]; o[i] = x;",  # a reference to a component
    ],
)
def test_a_mistake_is_found(body: str) -> None:
    check(KERNEL.format("threadgroup float s[8]; s[i] = a[i]; o[i] = float4(a[i])[1] + s[i];"))
    with pytest.raises(LintError):
        check(KERNEL.format(body))
