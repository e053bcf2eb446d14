from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxserve.backends.torch.native.build import BuildError, build
from mlxserve.backends.torch.native.library import Library


@pytest.fixture(scope="session", params=["native", "haswell"])
def library_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built for this CPU, and for an older one that it can stand in for: AVX2 without dot products."""
    if request.param == "haswell" and platform.machine() != "x86_64":
        pytest.skip("AVX2 is x86's")
    try:
        return build(tmp_path_factory.mktemp("native"), cpu=request.param)
    except BuildError as error:
        pytest.skip(f"no C++ operators here: {error}")


@pytest.fixture(scope="session")
def library(library_path: Path) -> Iterator[Library]:
    library = Library(library_path, threads=2)
    yield library
    library.close()
