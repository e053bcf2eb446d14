"""The client's two themes, and which of them suits the terminal."""

from __future__ import annotations

import os
import re
import select
import sys
import time

from textual.theme import Theme

DARK = Theme(
    name="mlxserve-dark",
    primary="#5acbb0",
    secondary="#86b3ea",
    accent="#5acbb0",
    foreground="#e2eae7",
    background="#0d1211",
    surface="#141a19",
    panel="#1d2724",
    success="#4fc0a4",
    warning="#f0b063",
    error="#ff9d8a",
    dark=True,
)
LIGHT = Theme(
    name="mlxserve-light",
    primary="#0b6b57",
    secondary="#3a6fb0",
    accent="#0b6b57",
    foreground="#15201c",
    background="#ffffff",
    surface="#f3f6f4",
    panel="#e3eae7",
    success="#0f7d66",
    warning="#8a4b0c",
    error="#a3301e",
    dark=False,
)

_QUERY = b"\x1b]11;?\x1b\\"  # xterm: what is the background colour?
_ANSWER = re.compile(rb"\x1b\]11;rgb:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_WAIT_S = 0.15


def choose(name: str) -> Theme:
    """``name``: auto, light or dark."""
    if name == "auto":
        return LIGHT if terminal_is_light() else DARK
    return LIGHT if name == "light" else DARK


def is_light(answer: bytes) -> bool | None:
    """What a terminal's answer says of its background; None when it is no answer."""
    found = _ANSWER.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return bool(0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5)  # relative luminance, Rec. 709


def terminal_is_light() -> bool:
    """Asks the terminal; one that does not answer counts as dark."""
    try:
        import termios
        import tty
    except ImportError:  # no such terminal on this system
        return False
    descriptor = sys.stdin.fileno()
    try:
        saved = termios.tcgetattr(descriptor)
    except termios.error:
        return False
    try:
        tty.setcbreak(descriptor)
        os.write(sys.stdout.fileno(), _QUERY)
        answer, deadline = b"", time.monotonic() + _WAIT_S
        while (left := deadline - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
            answer += os.read(descriptor, 64)
            if answer.endswith((b"\x1b\\", b"\x07")):
                break
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
    return bool(is_light(answer))
