"""``mlxserve attn-demo``: the attention implementations of the torch backend on a toy pool."""

from __future__ import annotations

import argparse
import importlib.util

from mlxserve.backends import REMEDIES
from mlxserve.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sequences", type=int, default=4, metavar="N", help="that decode one token (default: 4)")
    parser.add_argument("--context", type=int, default=200, metavar="N", help="tokens each of them sees (default: 200)")
    parser.add_argument("--chunk", type=int, default=32, metavar="N", help="queries of one prefill (default: 32)")


def run(args: argparse.Namespace) -> int:
    for flag, value in (("--sequences", args.sequences), ("--context", args.context), ("--chunk", args.chunk)):
        if not 1 <= value <= 4096:
            raise ConfigError(flag, value, "must be from 1 to 4096")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("attn-demo", "without torch", f"needs it: pip install '{REMEDIES['torch']}'")
    from mlxserve.backends.torch.attention_demo import Toy, compare, shown

    print("\n".join(shown(compare(Toy(sequences=args.sequences, context=args.context, chunk=args.chunk)))))
    return 0
