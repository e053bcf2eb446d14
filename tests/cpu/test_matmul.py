"""Products of packed weights against float64, over storages, shapes and numbers of rows; and bits that no other row
changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mlxserve.backends.torch.native.library import Library, OperatorKind
from mlxserve.backends.torch.native.weights import Form, NativeLinear, pack, packed_bytes
from mlxserve.formats.affine import dequantize
from mlxserve.formats.tensors import DenseTensor, HostTensor
from tests.cpu.operators import Product, affine, quantized_rows

MOST_ROWS = 70
ROWS = (1, 2, 3, 5, 8, 11, 12, 13, 16, 25, 32, 47, 64, MOST_ROWS)
STORAGES = [
    pytest.param(bits, symmetric, wide, form, id=f"{bits}bit-{form}{'-symmetric' * symmetric}{'-wide' * wide}")
    for bits, form in ((4, "int4"), (4, "int8"), (8, "int4"), (3, "int4"), (6, "int8"))
    for symmetric in (False, True)
    for wide in (False, True)
]


def expand(tensor: HostTensor) -> torch.Tensor:
    return torch.from_numpy(dequantize(tensor))


def rows_of(k: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(MOST_ROWS, k, generator=torch.Generator().manual_seed(seed))
    x[3] = 0
    x[4] *= 1e4
    return x


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def check_rows(library: Library, product: Product, x: torch.Tensor) -> torch.Tensor:
    """The result of all rows; the first n of them alone have the same bits."""
    whole = product(library, x)
    for n in ROWS:
        assert torch.equal(product(library, x[:n].contiguous()), whole[:n]), n
    return whole


@pytest.mark.parametrize(("bits", "symmetric", "wide", "form"), STORAGES)
@pytest.mark.parametrize(("group", "n", "k"), [(32, 37, 96), (64, 48, 192), (128, 16, 256)])
def test_quantised_products(
    library: Library, bits: int, symmetric: bool, wide: bool, form: Form, group: int, n: int, k: int
) -> None:
    tensor = affine(bits, n, k, bits, group, symmetric=symmetric, wide=wide)
    x = rows_of(k)
    found = check_rows(library, Product(OperatorKind.NORM_LINEAR, pack(library, form, [tensor])), x)
    weight = expand(tensor).double()
    for r in range(MOST_ROWS):  # row by row: their sizes differ widely
        wanted = quantized_rows(x[r : r + 1]) @ weight.T
        assert (found[r] - wanted[0]).abs().max() <= 1e-5 * float(x[r].norm() * weight.norm(dim=1).max()), r


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("n", "k"), [(37, 50), (16, 33), (64, 576)])
def test_dense_products(library: Library, dtype: str, n: int, k: int) -> None:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    raw = weight.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else weight.numpy()
    linear = pack(library, "int4", [DenseTensor(raw, dtype)])  # type: ignore[arg-type]
    x = rows_of(k)
    found = check_rows(library, Product(OperatorKind.NORM_LINEAR, linear), x)
    wanted = x.double() @ weight.double().T
    assert ((found - wanted).abs().amax(1) <= 1e-5 * x.norm(dim=1).clamp(min=1e-9) * weight.float().norm()).all()


def some_linear(
    library: Library, n: int, k: int, bias: bool = False, seed: int = 0
) -> tuple[NativeLinear, torch.Tensor]:
    tensor = affine(seed, n, k, 4, 32)
    biases: list[HostTensor] = []
    if bias:
        biases = [DenseTensor(np.random.default_rng(0).standard_normal(n).astype(np.float32), "float32")]
    return pack(library, "int4", [tensor], biases), expand(tensor).double()


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


@pytest.mark.parametrize("n", [48, 41])
def test_norm_and_bias(library: Library, n: int) -> None:
    linear, weight = some_linear(library, n, 96, bias=True)
    assert linear.bias is not None
    norm = 1 + 0.2 * torch.randn(96, generator=torch.Generator().manual_seed(2))
    x = rows_of(96)
    found = check_rows(library, Product(OperatorKind.NORM_LINEAR, linear, norm=norm), x)
    wanted = normed(x.double(), norm.double()) @ weight.T + linear.bias
    assert relative(found, wanted) < 0.02
    # The norm is really applied, and the bias is.
    assert relative(found, x.double() @ weight.T) > 0.5
    assert relative(found[3:4], linear.bias[None].double()) == 0  # a row of zeros


@pytest.mark.parametrize(("activation", "function"), [(0, "silu"), (1, "gelu")])
def test_gated_products(library: Library, activation: int, function: str) -> None:
    linear, weight = some_linear(library, 96, 64, bias=True)
    norm = torch.ones(64)
    x = rows_of(64)
    product = Product(OperatorKind.NORM_GLU, linear, norm=norm, activation=activation)
    found = check_rows(library, product, x)
    y = quantized_rows(normed(x, norm)) @ weight.T + linear.bias
    act = torch.nn.functional.silu if function == "silu" else lambda z: torch.nn.functional.gelu(z, approximate="tanh")
    wanted = act(y[:, :48]) * y[:, 48:]
    assert relative(found, wanted) < 2e-3


@pytest.mark.parametrize("post_norm", [False, True])
def test_residual_products(library: Library, post_norm: bool) -> None:
    linear, weight = some_linear(library, 37, 64)
    residual = torch.randn(MOST_ROWS, 37, generator=torch.Generator().manual_seed(3))
    norm = 1 + 0.2 * torch.randn(37, generator=torch.Generator().manual_seed(4)) if post_norm else None
    x = torch.randn(MOST_ROWS, 64, generator=torch.Generator().manual_seed(5))
    found = check_rows(
        library, Product(OperatorKind.LINEAR_RESIDUAL, linear, norm=norm, residual=residual, alpha=0.7), x
    )
    y = quantized_rows(x) @ weight.T
    wanted = residual + 0.7 * (y if norm is None else normed(y, norm.double()))
    assert relative(found, wanted) < 1e-3


def test_rows_do_not_depend_on_neighbours_or_threads(library_path: Path, library: Library) -> None:
    linear, _ = some_linear(library, 64, 96)
    product = Product(OperatorKind.NORM_LINEAR, linear)
    x = rows_of(96)
    whole = product(library, x)
    order = torch.randperm(MOST_ROWS, generator=torch.Generator().manual_seed(6))
    assert torch.equal(product(library, x[order].contiguous()), whole[order])
    for threads in (1, 3, 5):  # more than there are cores: workers come late
        other = Library(library_path, threads)
        for _ in range(20):
            assert torch.equal(product(other, x), whole), threads
        other.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_visible(library: Library, value: float) -> None:
    linear, _ = some_linear(library, 32, 96)
    x = rows_of(96)
    clean = Product(OperatorKind.NORM_LINEAR, linear)(library, x)
    for column in (0, 17, 95):
        broken = x.clone()
        broken[5, column] = value
        found = Product(OperatorKind.NORM_LINEAR, linear)(library, broken)
        assert not found[5].isfinite().any()
        assert torch.equal(found[6:], clean[6:])
        assert torch.equal(found[:5], clean[:5])


def test_several_matrices_become_one(library: Library) -> None:
    parts = [affine(i, n, 64, 4, 32) for i, n in enumerate((20, 9, 16))]
    x = rows_of(64)
    found = Product(OperatorKind.NORM_LINEAR, pack(library, "int4", parts))(library, x)
    each = [Product(OperatorKind.NORM_LINEAR, pack(library, "int4", [p]))(library, x) for p in parts]
    assert torch.equal(found, torch.cat(each, 1))
    # Matrices of different kinds are kept as floats.
    mixed = pack(library, "int4", [parts[0], affine(9, 8, 64, 8, 64)])
    wanted = x.double() @ torch.cat([expand(parts[0]), expand(affine(9, 8, 64, 8, 64))]).double().T
    assert relative(Product(OperatorKind.NORM_LINEAR, mixed)(library, x), wanted) < 1e-5


@pytest.mark.parametrize(("bits", "form", "per_weight"), [(4, "int4", 0.5), (4, "int8", 1.0), (8, "int4", 1.0)])
def test_packed_size(library: Library, bits: int, form: Form, per_weight: float) -> None:
    tensor = affine(0, 64, 128, bits, 32)
    linear = pack(library, form, [tensor])
    assert linear.data.numel() == packed_bytes(tensor, form) == 64 * 128 * per_weight + 64 * 4 * 4
