"""``mlxserve completion SHELL``: a script that completes commands, flags and their values.

The script is made from the same parsers that read the command line, so it cannot fall behind them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from mlxserve.cli.completion_scripts import SCRIPTS

_WHERE = {
    "bash": "source <(mlxserve completion bash), in ~/.bashrc",
    "zsh": "source <(mlxserve completion zsh), in ~/.zshrc after compinit",
    "fish": "mlxserve completion fish > ~/.config/fish/completions/mlxserve.fish",
}


@dataclass(frozen=True, slots=True)
class Option:
    """``takes_value``: a word follows it, one of ``choices`` if there are any."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """``words``: how it is called, after the program's name; ``children`` are the commands below it."""

    words: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    arguments: tuple[str, ...]  # choices of its positional arguments, together
    children: tuple[Command, ...]

    def walk(self) -> Iterator[Command]:
        """It and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="; ".join(_WHERE.values()))


def run(args: argparse.Namespace) -> int:
    from mlxserve.cli import COMMANDS, build_parser

    root = build_parser([])
    below = tuple(_command(_child(build_parser([name]), name), (name,), text) for name, text in COMMANDS.items())
    top = Command((), "", tuple(_options(root)), (), below)
    print(SCRIPTS[args.shell](top))
    return 0


def _child(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    child: argparse.ArgumentParser = _subparsers(parser).choices[name]  # type: ignore[index]
    return child


def _subparsers(parser: argparse.ArgumentParser) -> argparse.Action:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _command(parser: argparse.ArgumentParser, words: tuple[str, ...], text: str) -> Command:
    children: list[Command] = []
    arguments: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            children += (_command(child, (*words, name), helps.get(name, "")) for name, child in action.choices.items())
        elif not action.option_strings and action.choices:
            arguments += map(str, action.choices)
    return Command(words, text, tuple(_options(parser)), tuple(arguments), tuple(children))


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            text = (action.help or "").replace("%%", "%").split(" (default")[0]
            choices = tuple(map(str, action.choices or ()))
            yield Option(tuple(action.option_strings), text, action.nargs != 0, choices)
