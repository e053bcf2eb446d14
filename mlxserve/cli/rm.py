"""``mlxserve rm``: takes a model out of the hub's cache."""

from __future__ import annotations

import argparse

from mlxserve.cli.sizes import size
from mlxserve.hub import Hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M", help="org/name with all its revisions, or org/name@revision")


def run(args: argparse.Namespace) -> int:
    print(f"{args.model} is gone; {size(Hub().remove(args.model))} are free again")
    return 0
