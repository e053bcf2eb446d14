"""Runs a command for as long as its own standard input stays open: ``python -I -S leash.py OUTPUT COMMAND...``.

Whoever started it holds the other end of that pipe. However they end, also by SIGKILL, the pipe closes; then the
command and all that it started are killed, and the unfinished file OUTPUT is removed. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def main(output: str, command: list[str]) -> int:
    """Returns the command's exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)

    def watch() -> None:
        while os.read(0, 1024):
            continue
        os.killpg(child.pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    if status:
        Path(output).unlink(missing_ok=True)
    return 1 if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
