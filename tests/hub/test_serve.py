"""A real server process whose model comes from the hub: fetched, then from the cache, or refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.server import running_server
from tests.hub.fake_hub import FakeHub, running
from tests.tiny import make_llama

NAME = "some-org/tiny-llama"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running() as hub:
        yield hub


def environment(hub: FakeHub, cache: Path, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(cache), "HF_HUB_CACHE": str(cache / "hub"), **more}


def answer(env: dict[str, str], model: str = NAME) -> str:
    """The text of one greedy chat."""
    with (
        running_server("--model", model, "--backend", "torch", "--max-num-seqs", "2", env=env) as server,
        OpenAI(base_url=f"{server.base_url}/v1", api_key="unused", max_retries=0, timeout=60) as client,
    ):
        (served, *_) = client.models.list().data
        chat = client.chat.completions.create(
            model=served.id, messages=[{"role": "user", "content": "hi"}], temperature=0, max_tokens=8
        )
        assert server.stop() == 0
    assert chat.usage is not None
    assert chat.usage.completion_tokens > 0
    return chat.choices[0].message.content or ""


def refused(env: dict[str, str], model: str) -> str:
    """The one sentence with which a server that does not start ends, after its progress bars."""
    done = subprocess.run(
        [sys.executable, "-m", "mlxserve", "serve", "--port", "0", "--model", model, "--backend", "torch"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    (said,) = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("mlxserve: ")]
    assert done.stderr.endswith(f"{said}\n")
    return said


def test_fetched_once_then_served_offline(hub: FakeHub, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in make_llama(tmp_path / "model").iterdir()}
    hub.add(NAME, files | {"README.md": b"# hi", "modeling.py": b"raise SystemExit(9)"})
    first = answer(environment(hub, tmp_path / "cache"))
    assert "model.safetensors" in hub.fetched()
    assert not {"README.md", "modeling.py"} & set(hub.fetched())
    hub.requests.clear()
    assert answer(environment(hub, tmp_path / "cache", HF_HUB_OFFLINE="1")) == first
    assert not hub.requests, "offline, nothing is asked of the hub"


def test_offline_without_a_copy(hub: FakeHub, tmp_path: Path) -> None:
    said = refused(environment(hub, tmp_path / "cache", HF_HUB_OFFLINE="1"), NAME)
    assert NAME in said
    assert not hub.requests


def test_gated_and_missing(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("some-org/gated", {"config.json": b"{}", "model.safetensors": b"x"}, gated=True)
    for model, word in (("some-org/gated", "gated"), ("some-org/none", "does not exist")):
        said = refused(environment(hub, tmp_path / "cache"), model)
        assert model in said
        assert word in said
