"""The files that the modes write, checked before anything is measured, and the libraries of the extra ``bench``."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mlxserve.errors import ConfigError, MlxserveError

_PICTURES = (".png", ".svg", ".pdf")


def add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, with the machine and versions")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the results")


def check_outputs(args: argparse.Namespace, *flags: str) -> None:
    """Raises ConfigError for a file that cannot be written and MlxserveError without the library that draws, so that no
    measurement is lost. ``flags`` name files beside --json and --plot."""
    for flag in ("--json", "--plot", *flags):
        path: Path | None = getattr(args, flag.removeprefix("--"))
        if path is not None and (reason := _unwritable(path)):
            raise ConfigError(flag, path, f"cannot be written: {reason}")
    if args.plot is not None:
        if args.plot.suffix.lower() not in _PICTURES:
            raise ConfigError("--plot", args.plot, f"must end in one of {', '.join(_PICTURES)}")
        require("matplotlib", "--plot")


def _unwritable(path: Path) -> str | None:
    if path.is_dir():
        return "it is a directory"
    if path.exists():
        return None if os.access(path, os.W_OK) else "permission denied"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    return None if os.access(path.parent, os.W_OK) else "permission denied"


def require(library: str, what: str) -> None:
    """Raises MlxserveError when ``library`` is not installed."""
    if importlib.util.find_spec(library) is None:
        raise MlxserveError(f"{what} needs {library}: pip install 'mlxserve[bench]'")


@contextmanager
def progress_bar(total: int, title: str) -> Iterator[Any]:
    with tqdm(total=total, desc=title, unit="req", leave=False, disable=None) as bar:
        yield bar
