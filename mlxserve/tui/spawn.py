"""A server of the client's own: started in the background, waited for, and ended with the client.

Knows processes, the log file and that /health will answer; nothing of terminals.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import platformdirs

from mlxserve.errors import EngineUnavailable
from mlxserve.tui import keeper
from mlxserve.tui.client import ChatClient

Progress = Callable[[float, str, float | None], None]  # seconds, the log's last line, the share that is loaded

_POLL_S = 0.2
_TAIL_BYTES = 4096
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def default_log() -> Path:
    return Path(platformdirs.user_log_dir("mlxserve", appauthor=False)) / "chat-server.log"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class SpawnedServer:
    """``mlxserve serve`` under a keeper, its output in ``log``. A context manager: leaving it ends the server."""

    def __init__(self, serve_args: Sequence[str], log: Path, command: Sequence[str] | None = None) -> None:
        """``command``: what to run instead of ``mlxserve serve``; it gets ``--port N`` and ``serve_args`` too."""
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.log = log
        program = list(command or (sys.executable, "-m", "mlxserve", "serve"))
        self._command = [*program, "--port", str(self.port), *serve_args]
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def __enter__(self) -> SpawnedServer:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(keeper.__file__), *self._command],
                stdin=subprocess.PIPE,  # the keeper ends the server when this closes
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's signals are for the client
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        """The last line of the log; of a progress bar, its last state."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in re.split(r"[\r\n]+", _TERMINAL_CODES.sub("", text))]
        return next((line for line in reversed(lines) if line), "")

    async def wait_ready(self, client: ChatClient, progress: Progress) -> None:
        """Returns once the server is ready. Raises EngineUnavailable when it ends instead."""
        while (not_ready := await client.ready()) is not None:
            if not self.alive():
                raise EngineUnavailable(f"The server ended: {self.tail() or not_ready.reason} (its log: {self.log})")
            progress(time.monotonic() - self._started, self.tail(), not_ready.progress)
            await asyncio.sleep(_POLL_S)
