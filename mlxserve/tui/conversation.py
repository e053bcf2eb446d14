"""Conversations, and the directory that keeps them as one JSON file each.

Knows files and messages; nothing of HTTP or terminals.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from mlxserve.errors import BadRequest, MlxserveError
from mlxserve.tui.thinking import split_thinking

_TITLE_LENGTH = 60
# Sampling fields that /set knows, and their inclusive limits.
SAMPLING: dict[str, tuple[type[int] | type[float], float, float]] = {
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "top_k": (int, -1, 2**31 - 1),
    "min_p": (float, 0, 1),
    "max_tokens": (int, 1, 2**31 - 1),
    "seed": (int, -(2**63), 2**64 - 1),
    "repetition_penalty": (float, 0.01, 10),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
}


class ConversationError(MlxserveError):
    """A conversation cannot be found, read or written."""


def parse_sampling(name: str, text: str) -> int | float:
    """The value of a sampling field. Raises BadRequest naming the field and its limits."""
    if name not in SAMPLING:
        raise BadRequest(f"{name} is none of {', '.join(SAMPLING)}", param=name)
    kind, low, high = SAMPLING[name]
    try:
        value = kind(text)
    except ValueError:
        wanted = "a number" if kind is float else "a whole number"
        raise BadRequest(f"{name} is {text!r}, but must be {wanted}", param=name) from None
    if not low <= value <= high:
        raise BadRequest(f"{name} is {value}, but must be from {low} to {high}", param=name)
    return value


@dataclass(slots=True)
class Message:
    """``content`` of an answer may begin with its reasoning; ``reasoning`` is what came apart from it."""

    role: str
    content: str
    reasoning: str = ""
    note: str = ""  # figures, or how it ended


@dataclass(slots=True)
class Conversation:
    """Messages and how the next answer is to be sampled."""

    id: str
    title: str = ""
    system: str = ""
    sampling: dict[str, int | float] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    updated: str = ""  # ISO 8601, UTC

    def turns(self) -> list[dict[str, str]]:
        """What is sent: system prompt, and messages without their reasoning. Empty answers are left out."""
        turns = [{"role": "system", "content": self.system}] if self.system else []
        for message in self.messages:
            content = split_thinking(message.content).answer if message.role == "assistant" else message.content
            if content:
                turns.append({"role": message.role, "content": content})
        return turns

    def last_user(self) -> int | None:
        """Index of the last message that the user wrote."""
        return max((i for i, message in enumerate(self.messages) if message.role == "user"), default=None)


def new_conversation(system: str = "", sampling: dict[str, int | float] | None = None) -> Conversation:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Conversation(id=f"{stamp}-{secrets.token_hex(2)}", system=system, sampling=dict(sampling or {}))


def default_directory() -> Path:
    return Path(platformdirs.user_data_dir("mlxserve", appauthor=False)) / "conversations"


class Store:
    """The directory. Several clients may use it at once: files are replaced whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, conversation_id: str) -> Path:
        return self.directory / f"{conversation_id}.json"

    def save(self, conversation: Conversation) -> None:
        """Writes the file, and gives the conversation a title if it has none. Raises ConversationError."""
        conversation.updated = datetime.now(UTC).isoformat(timespec="seconds")
        conversation.title = conversation.title or _title(conversation)
        text = json.dumps({"version": 1, **_plain(conversation)}, ensure_ascii=False, indent=1)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.directory, delete=False, encoding="utf-8") as file:
                file.write(text)
            os.replace(file.name, self.path(conversation.id))
        except OSError as error:
            raise ConversationError(f"The conversation cannot be kept in {self.directory}: {error.strerror}") from None

    def load(self, conversation_id: str) -> Conversation:
        """Raises ConversationError when there is none of this id, or its file is damaged."""
        path = self.path(conversation_id)
        try:
            return _parse(json.loads(path.read_text(encoding="utf-8")), path.stem)
        except FileNotFoundError:
            raise ConversationError(f"No conversation {conversation_id!r} in {self.directory}") from None
        except (OSError, ValueError, TypeError, LookupError, AttributeError, BadRequest) as error:
            raise ConversationError(f"{path} is no conversation: {error}") from None

    def list(self) -> list[Conversation]:
        """All that can be read, newest first."""
        out = []
        for path in self.directory.glob("*.json"):
            try:
                out.append(self.load(path.stem))
            except ConversationError:
                continue  # somebody else's file; load() says what is wrong with it
        return sorted(out, key=lambda conversation: conversation.updated, reverse=True)

    def find(self, text: str) -> Conversation:
        """By id, by number in the list (1 is the newest) or by part of the title. Raises ConversationError."""
        conversations = self.list()
        if not text and conversations:
            return conversations[0]
        if text.isdecimal() and 1 <= int(text) <= len(conversations):
            return conversations[int(text) - 1]
        for conversation in conversations:
            if conversation.id == text or (text and text.lower() in conversation.title.lower()):
                return conversation
        raise ConversationError(f"No conversation matches {text!r}" if text else f"No conversation in {self.directory}")


def _plain(conversation: Conversation) -> dict[str, Any]:
    out = {f.name: getattr(conversation, f.name) for f in fields(Conversation)}
    out["messages"] = [{f.name: getattr(message, f.name) for f in fields(Message)} for message in conversation.messages]
    return out


def _parse(data: dict[str, Any], conversation_id: str) -> Conversation:
    return Conversation(
        id=conversation_id,
        title=str(data["title"]),
        system=str(data["system"]),
        sampling={name: parse_sampling(name, str(value)) for name, value in data["sampling"].items()},
        messages=[Message(**{f.name: str(m.get(f.name, "")) for f in fields(Message)}) for m in data["messages"]],
        updated=str(data["updated"]),
    )


def _title(conversation: Conversation) -> str:
    first = next((message.content for message in conversation.messages if message.role == "user"), "")
    text = re.sub(r"\s+", " ", first).strip()
    return text if len(text) <= _TITLE_LENGTH else text[: _TITLE_LENGTH - 1].rstrip() + "…"
