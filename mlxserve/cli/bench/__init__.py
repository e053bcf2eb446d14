"""``mlxserve bench``: engines compared on one prompt set, a load client, and throughput against latency.

One module a mode, each with its flags.
"""

from __future__ import annotations

import argparse

from mlxserve.cli.bench import arms, kernels, load, sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_subparsers(title="modes", metavar="MODE", help="serve, sweep, kernels; none: compare the arms")
    arms.add_arguments(parser)
    load.add_arguments(modes.add_parser("serve", help="send load to a running server, any OpenAI-compatible one"))
    sweep.add_arguments(modes.add_parser("sweep", help="throughput against latency over concurrency"))
    kernels.add_arguments(modes.add_parser("kernels", help="each Metal kernel's time beside MLX's; needs a GPU"))


def run(args: argparse.Namespace) -> int:
    return int(args.mode(args))
