"""One message in, its answer on stdout: what ``mlxserve chat`` does when its input is piped."""

from __future__ import annotations

import sys
from contextlib import aclosing

from mlxserve.errors import ConfigError
from mlxserve.tui.client import ChatClient
from mlxserve.tui.conversation import Conversation, Message
from mlxserve.tui.spawn import SpawnedServer
from mlxserve.tui.thinking import split_thinking


async def connect(client: ChatClient, server: SpawnedServer | None) -> str:
    """Waits for a spawned server, or asks the running one once; returns the model's name. Raises MlxserveError."""
    if server is not None:
        await server.wait_ready(client, lambda seconds, line, loaded: None)
    elif (not_ready := await client.ready()) is not None:
        raise unreachable(client.base_url, not_ready.reason)
    return await client.model()


def unreachable(base_url: str, reason: str) -> ConfigError:
    return ConfigError(
        "--base-url", base_url, f"{reason}; start a server with `mlxserve serve`, or add --spawn to have one"
    )


async def answer(client: ChatClient, server: SpawnedServer | None, conversation: Conversation, text: str) -> None:
    """Prints the answer as it comes, without its reasoning. Raises MlxserveError."""
    if not text.strip():
        raise ConfigError("the piped message", "empty", "there must be something to answer")
    model = await connect(client, server)
    conversation.messages.append(Message("user", text.strip()))
    printed = ""
    async with aclosing(client.chat(model, conversation.turns(), conversation.sampling)) as answers:
        async for state in answers:
            visible = split_thinking(state.content).answer
            # What looked like the answer may turn out to have been reasoning; then the answer begins on its own line.
            sys.stdout.write(visible[len(printed) :] if visible.startswith(printed) else f"\n{visible}")
            sys.stdout.flush()
            printed = visible
    print()
