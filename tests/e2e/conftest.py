from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.e2e.server import ServerProcess, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The embedded model on the torch backend, shared by the tests that leave it as they found it."""
    with running_server("--model", "smollm2-135m", "--backend", "torch") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client
