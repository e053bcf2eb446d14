"""``mlxserve chat``: the terminal client, of a running server or of one it starts itself."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from mlxserve.config import ServerConfig, model_from_environment
from mlxserve.errors import ConfigError, MlxserveError

if TYPE_CHECKING:
    from mlxserve.tui.conversation import Conversation, Store
    from mlxserve.tui.spawn import SpawnedServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ServerConfig()
    base_url = f"http://{defaults.host}:{defaults.port}"
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", metavar="URL", default=base_url, help=f"a running server (default: {base_url})")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file whose first line is the server's key")
    group.add_argument("--spawn", action="store_true", help="start a server for this chat, and end it afterwards")
    group = parser.add_argument_group("with --spawn")
    group.add_argument("--model", metavar="M", help="what is served (default: $MLXSERVE_MODEL or smollm2-135m)")
    group.add_argument(
        "--serve-args", metavar="ARGS", default="", help="flags of `mlxserve serve`: --serve-args='--strict'"
    )
    group.add_argument("--server-log", type=Path, metavar="FILE", help="where the server's output goes")
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", default="", help="the system prompt")
    group.add_argument("--max-tokens", metavar="N", help="longest answer, tokens")
    group.add_argument("--temperature", metavar="T", help="0 always takes the likeliest token")
    group.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="WHICH",
        help="go on with a kept conversation: the newest, or by number, id or part of its title",
    )
    group.add_argument("--list", action="store_true", help="list the kept conversations and exit")
    group.add_argument("--data-dir", type=Path, metavar="DIR", help="where they are kept (default: the user's data)")
    group.add_argument("--theme", choices=["auto", "light", "dark"], default="auto", help="auto asks the terminal")


def run(args: argparse.Namespace) -> int:
    _require_extra()
    from mlxserve.tui.conversation import Store, default_directory

    store = Store(args.data_dir or default_directory())
    if args.list:
        kept = store.list()
        if not kept:
            print("no conversation is kept yet")
        for number, conversation in enumerate(kept, 1):
            print(f"{number:3}  {conversation.updated[:16].replace('T', ' ')}  {conversation.title or 'Untitled'}")
        return 0
    if not sys.stdin.isatty():
        return asyncio.run(_plain(args, store))
    if not sys.stdout.isatty():
        raise ConfigError("standard output", "no terminal", "a chat needs one; pipe a message in for its answer alone")
    return _interactive(args, store)


def _require_extra() -> None:
    for name in ("httpx", "platformdirs", "textual"):
        if importlib.util.find_spec(name) is None:
            raise MlxserveError(f"chat needs {name}: pip install 'mlxserve[tui]'")


def _conversation(args: argparse.Namespace, store: Store) -> Conversation:
    from mlxserve.tui.conversation import new_conversation, parse_sampling

    conversation = new_conversation() if args.resume is None else store.find(args.resume)
    conversation.system = args.system or conversation.system
    for name in ("max_tokens", "temperature"):
        if (text := getattr(args, name)) is not None:
            conversation.sampling[name] = parse_sampling(name, text)
    return conversation


def _server(args: argparse.Namespace) -> SpawnedServer | None:
    from mlxserve.tui.spawn import SpawnedServer, default_log

    if not args.spawn:
        given = (("--model", args.model), ("--serve-args", args.serve_args), ("--server-log", args.server_log))
        for flag, value in given:
            if value:
                raise ConfigError(flag, value, "it is for the server that --spawn starts")
        return None
    serve_args = ["--model", args.model or model_from_environment(), *shlex.split(args.serve_args)]
    return SpawnedServer(serve_args, args.server_log or default_log())


def _api_key(args: argparse.Namespace) -> str | None:
    if args.api_key_file is None:
        return None
    try:
        return str(args.api_key_file.read_text(encoding="utf-8").split("\n", 1)[0].strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--api-key-file", args.api_key_file, f"cannot be read: {error}") from None


async def _plain(args: argparse.Namespace, store: Store) -> int:
    from mlxserve.tui import plain
    from mlxserve.tui.client import ChatClient

    text = sys.stdin.read()
    conversation = _conversation(args, store)
    server = _server(args)
    with ExitStack() as stack:
        if server is not None:
            stack.enter_context(server)
        async with ChatClient(server.base_url if server else args.base_url, _api_key(args)) as client:
            await plain.answer(client, server, conversation, text)
    return 0


def _interactive(args: argparse.Namespace, store: Store) -> int:
    from mlxserve.tui.app import ChatApp, Startup
    from mlxserve.tui.client import ChatClient
    from mlxserve.tui.theme import choose

    conversation = _conversation(args, store)
    theme = choose(args.theme)
    server = _server(args)
    key = _api_key(args)
    with ExitStack() as stack:
        if server is not None:
            stack.enter_context(server)

        async def chat() -> ChatApp:
            async with ChatClient(server.base_url if server else args.base_url, key) as client:
                app = ChatApp(Startup(client, store, conversation, theme, server))
                await app.run_async()
                return app

        app = asyncio.run(chat())
    if app.return_value is not None:
        raise app.return_value
    return app.return_code or 0
