"""Reasoning that a model writes into its answer as ``<think>...</think>``. Knows text only."""

from __future__ import annotations

from typing import NamedTuple

OPEN = "<think>"
CLOSE = "</think>"


class Parts(NamedTuple):
    """``open``: the reasoning has no end yet."""

    thinking: str
    answer: str
    open: bool


def split_thinking(text: str) -> Parts:
    """Separates reasoning at the start of ``text``, which may still be growing.

    Some templates open it in the prompt, so a closing tag alone ends it too.
    """
    start = text.lstrip()
    opened = start.startswith(OPEN)
    if not opened and text and OPEN.startswith(start):
        return Parts("", "", True)  # the tag itself may still be on its way
    body = start.removeprefix(OPEN) if opened else text
    before, close, after = body.partition(CLOSE)
    if close:
        return Parts(before.strip(), after.lstrip(), False)
    return Parts(body.strip(), "", True) if opened else Parts("", text, False)
