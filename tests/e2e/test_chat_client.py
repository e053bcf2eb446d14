"""The terminal client with a real server of its own: `mlxserve serve` as a child process, and a real model."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

pytest.importorskip("textual", reason="needs the tui extra")

from mlxserve.tui.conversation import Store
from mlxserve.tui.spawn import SpawnedServer
from mlxserve.tui.widgets import Loading
from tests.tui.test_app import answer, ask, chat, note, until, write
from tests.tui.test_spawn import gone, wait

SERVE_ARGS = ("--model", "smollm2-135m", "--kv-blocks", "128", "--max-num-seqs", "4")
LOADING_S = 120


def test_loading_is_told_in_shares(tmp_path: Path) -> None:
    with SpawnedServer(SERVE_ARGS, tmp_path / "server.log") as server:
        seen = asyncio.run(wait(server))
    shares = [share for _, _, share in seen if share is not None]
    assert shares == sorted(shares) != []
    assert all(0 <= share <= 1 for share in shares)


def test_a_chat_from_loading_to_leaving(tmp_path: Path) -> None:
    async def play() -> int:
        with SpawnedServer(SERVE_ARGS, tmp_path / "server.log") as server:
            async with chat(server.base_url, Store(tmp_path / "kept"), server=server) as (pilot, app):
                assert app.query_one(Loading).display
                await until(pilot, lambda: bool(app.query("#welcome")), LOADING_S)
                await write(pilot, "/set temperature 0")
                await ask(pilot, app, "What is the capital of France?")
                assert "Paris" in answer(app)
                assert re.search(r"\d+ tokens, [\d.]+/s, first in .*, \d+% of the prompt cached", note(app))
                await write(pilot, "/set max_tokens 4")
                await ask(pilot, app, "And of Italy?")
                assert note(app).startswith("ended at the token limit, 4 tokens")
                cached = re.search(r"(\d+)% of the prompt cached", note(app))
                assert cached
                assert int(cached[1]) > 50, "the turn before is in the prefix cache"
                await write(pilot, "/set max_tokens off")
                await write(pilot, "Write a long story about a ship and its crew.")
                await until(pilot, lambda: len(answer(app)) > 20, 60)
                await pilot.press("escape")
                await until(pilot, lambda: app._answering is None)
                assert note(app).startswith("stopped, ")
        return server.port

    assert gone(asyncio.run(play()))
    (kept,) = Store(tmp_path / "kept").list()
    assert [message.role for message in kept.messages] == ["user", "assistant"] * 3
    assert "Traceback" not in (tmp_path / "server.log").read_text()
