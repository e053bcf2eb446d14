"""Completion scripts for bash, zsh and fish, from a tree of commands and options. Knows no argparse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxserve.cli.completion import Command, Option


def bash(root: Command) -> str:
    """One case a command path; after a flag its values, or files where it has none to offer."""
    cases = []
    for command in root.walk():
        words = [child.words[-1] for child in command.children] + list(command.arguments)
        flags = [flag for option in command.options for flag in option.flags]
        valued = "\n".join(
            f"      {'|'.join(option.flags)}) values={_quoted(' '.join(option.choices))}; expects=1 ;;"
            for option in command.options
            if option.takes_value
        )
        cases.append(
            f"    {_quoted(' '.join(command.words))})\n      words={_quoted(' '.join(words))}\n"
            f"      flags={_quoted(' '.join(flags))}\n      case $previous in\n{valued}\n      esac ;;"
        )
    paths = " ".join(_quoted(" ".join(command.words)) for command in root.walk() if command.words)
    return _BASH.replace("@CASES@", "\n".join(cases)).replace("@PATHS@", paths)


_BASH = """\
_mlxserve() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local path= word try words= flags= values= expects= i known
  local -a paths=(@PATHS@)
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    try=${path:+$path }$word
    for known in "${paths[@]}"; do [[ $known == "$try" ]] && path=$try; done
  done
  case $path in
@CASES@
  esac
  COMPREPLY=()
  if [[ $expects ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
    [[ $values ]] || COMPREPLY=($(compgen -f -- "$current"))
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ $words ]] || COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _mlxserve mlxserve"""


def zsh(root: Command) -> str:
    """One function a command; each hands its first word to the function of the command below it."""
    return "\n".join([*(_zsh_function(command) for command in root.walk()), "compdef _mlxserve mlxserve"])


def _zsh_function(command: Command) -> str:
    lines = [_zsh_option(option) for option in command.options]
    if command.children:
        children = " ".join(_quoted(f"{c.words[-1]}:{_plain(c.help)}") for c in command.children)
        lines += ["'1: :->command'", "'*:: :->rest'"]
        below = f"{_zsh_name(command)}_${{words[1]}}"
        tail = (
            f"  case $state in\n"
            f"    command) local -a commands=({children}); _describe command commands ;;\n"
            f"    rest) (( $+functions[{below}] )) && {below} ;;\n"
            f"  esac\n"
        )
    else:
        lines.append(_quoted(f"*:argument:({' '.join(command.arguments)})") if command.arguments else "'*:file:_files'")
        tail = ""
    arguments = " \\\n    ".join(lines)
    start = '  local curcontext="$curcontext" state line\n  typeset -A opt_args\n' if command.children else ""
    return f"{_zsh_name(command)}() {{\n{start}  _arguments -C \\\n    {arguments}\n{tail}}}"


def _zsh_option(option: Option) -> str:
    value = ""
    if option.takes_value:
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
    names = f"({' '.join(option.flags)})" if len(option.flags) > 1 else ""
    specs = (_quoted(f"{names}{flag}[{_plain(option.help)}]{value}") for flag in option.flags)
    return " ".join(specs)


def _zsh_name(command: Command) -> str:
    return "_".join(("_mlxserve", *command.words))


def fish(root: Command) -> str:
    """One line an option or command, conditional on what has been typed."""
    lines = ["complete -c mlxserve -f"]
    for command in root.walk():
        here = _fish_condition(command)
        for child in command.children:
            lines.append(f"complete -c mlxserve -n {here} -a {child.words[-1]} -d {_quoted(_plain(child.help))}")
        if command.arguments:
            lines.append(f"complete -c mlxserve -n {here} -a {_quoted(' '.join(command.arguments))}")
        elif not command.children:
            lines.append(f"complete -c mlxserve -n {here} -F")
        lines += (_fish_option(here, option) for option in command.options)
    return "\n".join(lines)


def _fish_condition(command: Command) -> str:
    """That the words so far call this command, and none below it."""
    called = "".join(f" {word}" for word in command.words)
    end = r"( -\S*)*$" if command.children else "( |$)"
    return rf"""'string match -qr \'^\S+{called}{end}\' -- (commandline -opc | string join " ")'"""


def _fish_option(here: str, option: Option) -> str:
    names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = ""
    if option.takes_value:
        value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r -F"
    return f"complete -c mlxserve -n {here} {names} -d {_quoted(_plain(option.help))}{value}"


def _plain(text: str) -> str:
    """Help text without what the shells would read as more than text."""
    return "".join(c for c in " ".join(text.split()).replace("'", "’") if c not in '[]:`$\\"')


def _quoted(text: str) -> str:
    assert "'" not in text, text
    return f"'{text}'"


SCRIPTS: Mapping[str, Callable[[Command], str]] = {"bash": bash, "fish": fish, "zsh": zsh}
