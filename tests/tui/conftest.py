from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("textual", reason="needs the tui extra")

from tests.fake_server import running_fake_server


@pytest.fixture(scope="session")
def fake_url() -> Iterator[str]:
    with running_fake_server(delay_s=0.01) as url:
        yield url
