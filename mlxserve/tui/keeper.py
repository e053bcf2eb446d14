"""Runs a command for as long as its own standard input stays open, then ends it: ``python keeper.py COMMAND...``.

The client holds the other end of that pipe. However it ends, also by SIGKILL, the pipe closes and the server goes too.
Standard library only, so that it costs nothing to start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10  # from SIGTERM to SIGKILL


def main(command: list[str]) -> int:
    """Returns the command's exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())

    def watch() -> None:
        while os.read(0, 1024):  # not sys.stdin: a thread that waits in it disturbs the interpreter's end
            continue
        child.terminate()
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=watch, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
