"""The .metal files themselves, and the factories that build them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import mlx.core as mx
import pytest

from mlxserve.backends.mlx import kernel_source
from mlxserve.backends.mlx.kernel_source import read_kernel
from mlxserve.backends.mlx.kernels import Kernels, PackedWeight
from mlxserve.errors import ConfigError

pytestmark = pytest.mark.quick

DIRECTORY = kernel_source.kernel_directory()
NAMES = sorted(p.stem for p in DIRECTORY.glob("*.metal"))


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_small_and_ascii(name: str) -> None:
    source = read_kernel(name)
    assert len((DIRECTORY / f"{name}.metal").read_bytes()) < 8192
    assert len(source.header + source.body) < 8192
    assert (source.header + source.body).isascii()
    assert "//" not in source.header + source.body


def test_the_wheel_ships_every_kernel_and_the_readme_lists_it() -> None:
    project = tomllib.loads((DIRECTORY.parent / "pyproject.toml").read_text())
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    readme = (DIRECTORY / "README.md").read_text()
    for path in [*DIRECTORY.glob("*.metal"), *DIRECTORY.glob("*.h")]:
        assert shipped[f"kernels/{path.name}"] == f"mlxserve/backends/mlx/metal/{path.name}"
        assert f"`{path.name}`" in readme
    assert set(re.findall(r"`(\w+\.metal)`", readme)) == {f"{n}.metal" for n in NAMES}


def test_the_simulator_factory_computes() -> None:
    w = PackedWeight(mx.full((8, 8), 0x11111111, mx.uint32), mx.ones((8, 1)), mx.zeros((8, 1)), 4, 64)
    assert Kernels(kernel_source.simulated()).qmv(mx.ones((1, 64)), w).tolist() == [[64.0] * 8]


def test_without_the_repository_the_simulator_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_source, "kernel_directory", lambda: tmp_path / "metal")
    with pytest.raises(ConfigError, match="needs a checkout"):
        kernel_source.simulated()
