"""Drives the app in this process: plain calls for tests that look at answers, raw ASGI for those that look at time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette

from mlxserve.api.app import create_app
from mlxserve.api.settings import ApiSettings
from mlxserve.text.processor import TextProcessor
from tests.api.fakes import EOS, FakeEngine, Script
from tests.api.tiny_text import ids, tiny_text

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def strict_json(raw: str | bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(raw, parse_constant=refuse)


@dataclass
class Answer:
    status: int
    headers: httpx.Headers
    raw: bytes

    @property
    def json(self) -> Any:
        return strict_json(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, whose shape is checked."""
        assert set(self.json) == {"error"}, self.raw
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert self.headers["content-type"] == "application/json"
        return error

    def text(self, index: int = 0) -> str:
        choice = self.json["choices"][index]
        return choice["text"] if "text" in choice else choice["message"]["content"]


@dataclass
class Streamed:
    """A parsed event stream."""

    status: int
    headers: httpx.Headers
    raw: bytes
    frames: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # names of named events
    done: bool = False

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        return [choice for frame in self.frames for choice in frame.get("choices", ()) if choice["index"] == index]

    def text(self, index: int = 0) -> str:
        return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in self.choices(index))

    def finishes(self, index: int = 0) -> list[str]:
        return [c["finish_reason"] for c in self.choices(index) if c["finish_reason"] is not None]

    @property
    def usages(self) -> list[Any]:
        return [frame["usage"] for frame in self.frames if frame.get("usage") is not None]

    @property
    def error(self) -> dict[str, Any] | None:
        return next((frame["error"] for frame in self.frames if "error" in frame), None)


def parse_stream(status: int, headers: httpx.Headers, raw: bytes) -> Streamed:
    """Every event must end with an empty line and nothing may follow [DONE]."""
    stream = Streamed(status, headers, raw)
    text = raw.decode()
    assert text.endswith("\n\n"), text[-80:]
    for event in text[:-2].split("\n\n"):
        assert not stream.done, "something follows [DONE]"
        for line in event.split("\n"):
            name, _, value = line.partition(":")
            if name == "data" and value == " [DONE]":
                stream.done = True
            elif name == "data":
                stream.frames.append(strict_json(value))
            elif name == "event":
                stream.events.append(value.strip())
            else:
                assert name == "", line
                stream.comments.append(value.strip())
    return stream


class Api:
    """One app over a fake engine. ``says``: what every choice of every request says, byte by byte."""

    def __init__(
        self,
        says: str | bytes = "Hello there",
        *,
        engine: FakeEngine | None = None,
        text: TextProcessor | None = None,
        eos: bool = True,
        per_delta: int = 1,
        **settings: Any,
    ) -> None:
        said = (*ids(says), *((EOS,) if eos else ()))
        self.engine = engine or FakeEngine(lambda request: Script(lambda index: said, per_delta=per_delta))
        self.text = text or tiny_text()
        self.settings = ApiSettings(**{"served_names": ("fake",)} | settings)
        self.app: Starlette = create_app(self.engine, self.text, self.engine.info, self.settings)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url="http://t"
        )

    def request(self, method: str, path: str, **kwargs: Any) -> Answer:
        async def send() -> Answer:
            async with self.client() as client:
                response = await client.request(method, path, **kwargs)
                return Answer(response.status_code, response.headers, response.content)

        return asyncio.run(send())

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, /, **fields: Any) -> Answer:
        return self.request("POST", path, json=fields if body is None else body)

    def post_raw(self, path: str, raw: str | bytes) -> Answer:
        return self.request("POST", path, content=raw)

    def chat(self, messages: Sequence[Any] = HI, **fields: Any) -> Answer:
        return self.post(CHAT, {"messages": messages, **fields})

    def complete(self, prompt: Any = "1 2 3", **fields: Any) -> Answer:
        return self.post(COMPLETIONS, {"prompt": prompt, **fields})

    def stream(self, path: str = CHAT, **fields: Any) -> Streamed:
        fields = ({"messages": HI} if path == CHAT else {"prompt": "1 2 3"}) | fields
        answer = self.post(path, {"stream": True, **fields})
        if answer.status == 200:
            assert answer.headers["content-type"].startswith("text/event-stream")
        return parse_stream(answer.status, answer.headers, answer.raw)

    def refused(self, answer: Answer, param: str | None, status: int = 400) -> str:
        """The message of a refusal that names a parameter."""
        assert answer.status == status, answer.raw
        error = answer.error
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, error
        return str(error["message"])
