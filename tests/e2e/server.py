"""A real server process for the end-to-end tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

READY = re.compile(r"http://[\d.]+:(\d+)")


@dataclass
class ServerProcess:
    """``mlxserve serve`` on a free port; ``lines`` is what it has printed."""

    process: subprocess.Popen[str]
    base_url: str
    lines: list[str] = field(default_factory=list)

    def stop(self, timeout: float = 20) -> int:
        """Asks it to end, as a service manager would, and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@contextmanager
def running_server(*flags: str, env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Starts the server, waits for its address, and kills it at the end if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxserve", "serve", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    server = ServerProcess(process, "")
    try:
        for line in process.stdout:
            server.lines.append(line.rstrip())
            if found := READY.search(line):
                server.base_url = f"http://127.0.0.1:{found[1]}"
                break
        assert server.base_url, "the server ended before it was ready:\n" + "\n".join(server.lines)
        # Somebody must go on reading, or a full pipe would stop the server.
        reader = threading.Thread(target=lambda: server.lines.extend(line.rstrip() for line in process.stdout or ()))
        reader.start()
        yield server
    finally:
        process.kill()
        process.wait()
        if "reader" in locals():
            reader.join()
        process.stdout.close()
