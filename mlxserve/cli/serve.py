"""``mlxserve serve``: the HTTP server over one model."""

from __future__ import annotations

import argparse
import sys

from mlxserve.cli.options import add_engine_options, add_model_options, engine_config, model_config
from mlxserve.config import ServerConfig
from mlxserve.llm import serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ServerConfig()
    group = parser.add_argument_group("server")
    group.add_argument("--host", default=defaults.host, help=f"default: {defaults.host}")
    group.add_argument("--port", type=int, default=defaults.port, help=f"0: any free one (default: {defaults.port})")
    group.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", default=[], help="further names that requests may call it by"
    )
    add_model_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    server = ServerConfig(host=args.host, port=args.port, served_model_names=tuple(args.served_model_name))
    return serve(model_config(args), engine_config(args), server)
