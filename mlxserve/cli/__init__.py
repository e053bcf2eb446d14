"""The program ``mlxserve``: one subcommand a module, each imported only when it is called.

An error of the user's is one line on stderr and exit status 2, never a traceback (``--debug`` shows it).
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from mlxserve import __version__
from mlxserve.errors import MlxserveError

# name -> one line of help; the module mlxserve.cli.<name> has ``add_arguments(parser)`` and ``run(args) -> int``.
COMMANDS = {
    "serve": "serve a model over HTTP, with OpenAI's endpoints",
    "chat": "chat in the terminal, with a running server or one of its own",
    "generate": "complete a prompt, or answer a chat message, on the terminal",
    "plan": "say what a model will need in memory, and how fast it can be",
    "pull": "fetch a model from the hub, or what is missing of it",
    "models": "list the models on this machine, and whether they fit",
    "quantize": "write a model quantised, for this program and for mlx-lm",
    "rm": "remove a model that was fetched from the hub",
    "doctor": "check the machine and the install, and say what to do",
    "bench": "compare engines on this machine, or send load to a server",
    "attn-demo": "compare the attention implementations on a toy pool",
    "kv-demo": "step through the KV block manager by hand",
    "completion": "print a script that completes this command line in a shell",
}


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace(debug=False)
    try:
        parser = build_parser(argv)
        if not argv:
            parser.print_help(sys.stderr)
            return 2
        args = parser.parse_args(argv)
        return int(args.run(args))
    except MlxserveError as error:
        if args.debug:
            traceback.print_exc()
        print(f"mlxserve: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody to tell, and the interpreter's flush at exit must not fail.
        sys.stdout = None
        return 141


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The whole parser; of the subcommands, only the one that ``argv`` names is filled in."""
    named = next((word for word in argv if not word.startswith("-")), None)
    parser = OneLineParser(prog="mlxserve")
    parser.add_argument("--version", action="version", version=f"mlxserve {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == named:
            module = importlib.import_module(f"mlxserve.cli.{name.replace('-', '_')}")
            command.add_argument("--debug", action="store_true", help="show a traceback with an error")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
