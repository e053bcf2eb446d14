"""How far a command is, on a terminal; nothing where stderr is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def tensor_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function that is told the tensors done and the tensors in all."""
    with tqdm(desc=title, unit="tensor", leave=False, disable=None, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
