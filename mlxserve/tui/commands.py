"""The slash commands: what each is called, and what it does to a session.

Knows conversations and the session's verbs; nothing of widgets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from mlxserve.errors import BadRequest
from mlxserve.tui.conversation import SAMPLING, Conversation, Store, parse_sampling


class Session(Protocol):
    """The app, as far as commands may change it."""

    conversation: Conversation
    store: Store

    async def open(self, conversation: Conversation) -> None:
        """Shows another conversation."""
        ...

    async def fresh(self) -> None:
        """Begins a new conversation."""
        ...

    async def choose(self) -> None:
        """Lets the user pick a kept conversation."""
        ...

    def exit(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """``run`` returns what to tell the user; it raises MlxserveError."""

    usage: str
    help: str
    run: Callable[[Session, str], Awaitable[str]]


async def run_command(session: Session, line: str) -> str:
    """Runs ``/name rest`` and returns what to tell the user. Raises MlxserveError."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise BadRequest(f"/{name} is no command; /help lists them")
    return await command.run(session, rest.strip())


async def _help(session: Session, rest: str) -> str:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join([*lines, "", KEYS])


async def _system(session: Session, rest: str) -> str:
    conversation = session.conversation
    if rest:
        conversation.system = "" if rest == "off" else rest
        return f"System prompt: {conversation.system}" if conversation.system else "No system prompt."
    return f"System prompt: {conversation.system or 'none'}"


async def _set(session: Session, rest: str) -> str:
    sampling = session.conversation.sampling
    name, _, text = rest.partition(" ")
    if name and not text:
        raise BadRequest(f"/set {name} needs a value, or `off` to leave it to the server")
    if text == "off":
        sampling.pop(name, None)
    elif name:
        sampling[name] = parse_sampling(name, text)
    shown = ", ".join(f"{key} {value}" for key, value in sampling.items()) or "as the server does by default"
    return f"Sampling: {shown}" if name else f"Sampling: {shown}. Can be set: {', '.join(SAMPLING)}."


async def _save(session: Session, rest: str) -> str:
    conversation = session.conversation
    conversation.title = rest or conversation.title
    session.store.save(conversation)
    return f"Kept as {session.store.path(conversation.id)}"


async def _load(session: Session, rest: str) -> str:
    if rest:
        await session.open(session.store.find(rest))
    else:
        await session.choose()
    return ""


async def _new(session: Session, rest: str) -> str:
    await session.fresh()
    return ""


async def _quit(session: Session, rest: str) -> str:
    session.exit()
    return ""


COMMANDS = {
    "help": Command("/help", "this list", _help),
    "system": Command("/system TEXT", "the system prompt; `off` removes it, nothing shows it", _system),
    "set": Command("/set NAME VALUE", "sampling, such as /set temperature 0.2; `off` as the value unsets it", _set),
    "save": Command("/save [TITLE]", "keep the conversation, under a title", _save),
    "load": Command("/load [TEXT]", "open a kept conversation: choose one, or by number or part of its title", _load),
    "new": Command("/new", "begin a new conversation", _new),
    "quit": Command("/quit", "leave", _quit),
}
KEYS = (
    "Enter sends, Ctrl-J is a new line, Escape stops an answer, Up edits the last message,\n"
    "Ctrl-R begins a new conversation, Ctrl-L opens a kept one, Ctrl-C leaves."
)
