from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxserve.backends.torch.native.build import BuildError, build
from mlxserve.backends.torch.native.library import Library


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("native"))
    except BuildError as error:
        pytest.skip(f"no C++ operators here: {error}")


@pytest.fixture(scope="session")
def library(library_path: Path) -> Iterator[Library]:
    library = Library(library_path, threads=2)
    yield library
    library.close()
