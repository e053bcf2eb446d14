"""``mlxserve pull``: a model from the hub into its cache."""

from __future__ import annotations

import argparse

from mlxserve.formats.checkpoint import EMBEDDED_MODEL, embedded_model_path
from mlxserve.hub import Hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M", help="org/name or org/name@revision")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    if args.model == EMBEDDED_MODEL:
        path = embedded_model_path()
    else:
        path = Hub().pull(args.model, show_progress=not args.quiet)
    print(f"{args.model} is complete: {path}")
    return 0
