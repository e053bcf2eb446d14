"""A server of the client's own: waited for, and gone with the client however that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from mlxserve.errors import EngineUnavailable
from mlxserve.tui.client import ChatClient
from mlxserve.tui.spawn import SpawnedServer

FAKE = [sys.executable, "-m", "tests.fake_server"]


def gone(port: int, within_s: float = 15) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        except httpx.HTTPError:
            return True
        time.sleep(0.05)
    return False


async def wait(server: SpawnedServer) -> list[tuple[float, str, float | None]]:
    seen: list[tuple[float, str, float | None]] = []
    async with ChatClient(server.base_url) as client:
        await server.wait_ready(client, lambda *progress: seen.append(progress))
        assert await client.model() == "smollm2-135m"
    return seen


def test_it_is_waited_for_and_ended(tmp_path: Path) -> None:
    with SpawnedServer(["--load-s", "2"], tmp_path / "logs" / "server.log", FAKE) as server:
        seen = asyncio.run(wait(server))
        assert server.alive()
    assert len(seen) >= 2, "progress is told while it loads"
    assert "loading" in seen[-1][1]
    shares = [share for _, _, share in seen if share is not None]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1
    assert gone(server.port)


def test_a_server_that_fails_says_why(tmp_path: Path) -> None:
    with (
        SpawnedServer(["--no-such-flag"], tmp_path / "server.log", FAKE) as server,
        pytest.raises(EngineUnavailable, match=r"The server ended: .*no-such-flag.*its log: .*server\.log"),
    ):
        asyncio.run(wait(server))


CLIENT = """
import asyncio, sys
from pathlib import Path
from tests.tui.test_spawn import FAKE, wait
from mlxserve.tui.spawn import SpawnedServer
with SpawnedServer([], Path(sys.argv[1]), FAKE) as server:
    asyncio.run(wait(server))
    print(server.port, flush=True)
    sys.stdin.read()
    raise RuntimeError("the client crashed")
"""


@pytest.mark.parametrize("how", ["exception", "SIGTERM", "SIGKILL"])
def test_it_goes_with_a_client_that_crashes(tmp_path: Path, how: str) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path / "server.log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with client:
        assert client.stdout is not None
        port = int(client.stdout.readline())
        if how != "exception":
            os.kill(client.pid, getattr(signal, how))
    assert gone(port)


def test_the_tail_of_a_log_is_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = SpawnedServer([], log)
    assert server.tail() == ""
    log.write_bytes(b"model x\n\x1b[2Kloading 1/9\rloading 7/9\r\n\n")
    assert server.tail() == "loading 7/9"
