"""How far a command is, on a terminal; nothing where stderr is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from tqdm import tqdm


def notice(text: str) -> None:
    """A line on stderr, terminal or not."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def tensor_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function that is told the tensors done and the tensors in all; nothing is drawn before its first call."""
    with ExitStack() as stack:
        bar: tqdm[NoReturn] | None = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                bar = stack.enter_context(
                    tqdm(
                        desc=title, initial=done, total=total, unit="tensor", leave=False, disable=None, file=sys.stderr
                    )
                )
            bar.update(done - bar.n)

        yield progress
