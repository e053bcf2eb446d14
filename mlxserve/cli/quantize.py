"""``mlxserve quantize``: a model into a directory of MLX's form, quantised."""

from __future__ import annotations

import argparse
from pathlib import Path

from mlxserve.cli.progress import notice, tensor_bar
from mlxserve.cli.sizes import size
from mlxserve.config import GROUP_SIZES
from mlxserve.convert import quantize_checkpoint
from mlxserve.hub import Hub

_BITS = {"int4": 4, "int8": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M", help="as for serve")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="a directory that does not exist")
    parser.add_argument("--quant", choices=list(_BITS), default="int4", help="default: int4")
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=64, help="default: 64")


def run(args: argparse.Namespace) -> int:
    checkpoint = Hub().open_model(args.model)
    with tensor_bar("quantising") as progress:
        quantize_checkpoint(checkpoint, args.out, _BITS[args.quant], args.group_size, progress, notice)
    written = size(sum(path.stat().st_size for path in args.out.glob("*.safetensors")))
    print(f"{checkpoint.name} is written to {args.out}: {written} of weights")
    return 0
