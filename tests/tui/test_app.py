"""The client under Textual's pilot, at 80x24, against a server over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from textual.pilot import Pilot
from textual.widgets import Markdown, ProgressBar, Static

from mlxserve.errors import ConfigError, EngineUnavailable, MlxserveError
from mlxserve.tui.app import ChatApp, Startup
from mlxserve.tui.client import ChatClient
from mlxserve.tui.conversation import Store, new_conversation
from mlxserve.tui.spawn import SpawnedServer
from mlxserve.tui.theme import DARK, LIGHT, is_light
from mlxserve.tui.widgets import AnswerView, Composer, ConversationList, Loading, Notice, UserMessage
from tests.tui.test_spawn import FAKE, gone

AppPilot = Pilot[MlxserveError | None]
Scenario = Callable[[AppPilot, ChatApp], Coroutine[Any, Any, None]]


@asynccontextmanager
async def chat(url: str, store: Store, **more: Any) -> AsyncIterator[tuple[AppPilot, ChatApp]]:
    async with ChatClient(url) as client:
        app = ChatApp(Startup(client, store, new_conversation(), **{"theme": DARK, **more}))
        async with app.run_test(size=(80, 24)) as pilot:
            yield pilot, app


@pytest.fixture
def play(fake_url: str, tmp_path: Path) -> Callable[[Scenario], ChatApp]:
    """Runs a scenario in a client that is connected."""

    def run(scenario: Scenario) -> ChatApp:
        async def go() -> ChatApp:
            async with chat(fake_url, Store(tmp_path)) as (pilot, app):
                await until(pilot, lambda: bool(app.query("#welcome")))
                await scenario(pilot, app)
            return app

        return asyncio.run(go())

    return run


async def until(pilot: AppPilot, condition: Callable[[], bool], timeout_s: float = 15) -> None:
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            await pilot.pause()
            return
        await pilot.pause(0.02)
    raise AssertionError("never happened")


async def write(pilot: AppPilot, text: str) -> None:
    pilot.app.query_one(Composer).fill(text)
    await pilot.press("enter")


async def ask(pilot: AppPilot, app: ChatApp, text: str, timeout_s: float = 15) -> None:
    await write(pilot, text)
    await until(pilot, lambda: app.conversation.messages[-1].role == "assistant")
    await until(pilot, lambda: app._answering is None, timeout_s)


def text_of(widget: Static) -> str:
    return str(widget.visual)


def answer(app: ChatApp) -> str:
    return app.query(AnswerView).last().query_one(Markdown).source


def note(app: ChatApp) -> str:
    return text_of(app.query(AnswerView).last().query_one(".note", Static))


def notice(app: ChatApp) -> str:
    return text_of(app.query(Notice).last())


def test_a_conversation_is_shown_and_kept(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await ask(pilot, app, "hello")
        await ask(pilot, app, "markdown")
        assert [text_of(m) for m in app.query(UserMessage)] == ["hello", "markdown"]
        assert "## Paged attention" in answer(app)
        assert "tokens," in note(app)
        assert "% of" in note(app)
        assert "smollm2-135m  hello" in text_of(app.query_one("#bar", Static))

    app = play(scenario)
    (kept,) = app.store.list()
    assert [m.role for m in kept.messages] == ["user", "assistant"] * 2
    assert kept.messages[1].content == "You said: hello "


def test_keys_of_the_box(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert app.query_one(Composer).text == "a\nb\nc"
        assert not app.conversation.messages
        await pilot.press("enter")
        await until(pilot, lambda: len(app.conversation.messages) == 2)
        assert app.conversation.messages[0].content == "a\nb\nc"
        assert app.query_one(Composer).text == ""
        await pilot.press("enter")
        assert len(app.conversation.messages) == 2, "an empty box sends nothing"

    play(scenario)


def test_escape_stops_and_keeps_what_came(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await write(pilot, "long story")
        await until(pilot, lambda: "word20" in answer(app) if app.query(AnswerView) else False)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: app._answering is None)
        assert note(app).startswith("stopped, ")

    app = play(scenario)
    content = app.store.list()[0].messages[-1].content
    assert "word20" in content
    assert "word399" not in content


def test_a_message_waits_in_the_box_while_an_answer_comes(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await write(pilot, "wait")
        await until(pilot, lambda: app._answering is not None)
        await pilot.press("n", "e", "x", "t", "enter")
        assert app.query_one(Composer).text == "next"
        await pilot.press("escape")
        await until(pilot, lambda: app._answering is None)
        await pilot.press("enter")
        await until(pilot, lambda: app.conversation.messages[-1].content == "You said: next ")

    play(scenario)


def test_thinking_is_folded(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await ask(pilot, app, "think")
        fold = app.query(AnswerView).last()._thinking
        assert fold.display
        assert fold.collapsed
        assert fold.title == "Thought about it"
        assert answer(app) == "It is **42**."
        for _ in range(4):
            if type(app.focused).__name__ == "CollapsibleTitle":
                break
            await pilot.press("tab")
        await pilot.press("enter")
        assert not fold.collapsed, "a keyboard can open it"

    play(scenario)


def test_up_edits_the_last_message(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await ask(pilot, app, "first")
        await ask(pilot, app, "second")
        await pilot.press("up")
        assert app.query_one(Composer).text == "second"
        await pilot.press("escape")
        assert app.query_one(Composer).text == ""
        await pilot.press("up", "!", "enter")
        await until(pilot, lambda: len(app.conversation.messages) == 4 and app._answering is None)
        assert [m.content for m in app.conversation.messages if m.role == "user"] == ["first", "second!"]
        assert len(app.query(UserMessage)) == 2

    play(scenario)


def test_a_fresh_conversation_keeps_the_settings(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await write(pilot, "/set temperature 0.2")
        await write(pilot, "/system Be brief.")
        await ask(pilot, app, "hello")
        await pilot.press("ctrl+r")
        assert not app.conversation.messages
        assert not app.query(UserMessage)
        assert (app.conversation.system, app.conversation.sampling) == ("Be brief.", {"temperature": 0.2})

    play(scenario)


def test_settings_are_sent(play: Callable[[Scenario], ChatApp], fake_url: str) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await write(pilot, "/set max_tokens 2")
        await write(pilot, "/system Be brief.")
        await ask(pilot, app, "one two three")

    play(scenario)
    body = httpx.get(f"{fake_url}/fake/bodies", trust_env=False).json()[-1]
    assert body["max_tokens"] == 2
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/help", "/system TEXT"),
        ("/nonsense", "/nonsense is no command; /help lists them"),
        ("/set heat 1", "heat is none of temperature"),
        ("/set temperature", "needs a value"),
        ("/set temperature 9", "must be from 0 to 2"),
        ("/set", "as the server does by default"),
        ("/system", "System prompt: none"),
        ("/load nothing like it", "No conversation matches"),
        ("/load", "No conversation has been kept yet."),
        ("/save A title", "Kept as "),
    ],
)
def test_commands_answer(play: Callable[[Scenario], ChatApp], line: str, expected: str) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await write(pilot, line)
        await until(pilot, lambda: bool(app.query(Notice)))
        assert expected in notice(app)

    play(scenario)


def test_kept_conversations_are_opened(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await ask(pilot, app, "about clocks")
        await write(pilot, "/new")
        await ask(pilot, app, "about trains")
        await write(pilot, "/load clocks")
        await until(pilot, lambda: app.conversation.title == "about clocks")
        assert "You said: about clocks" in answer(app)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: isinstance(app.screen, ConversationList))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ConversationList))
        await pilot.press("ctrl+l")
        await until(pilot, lambda: isinstance(app.screen, ConversationList))
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: not isinstance(app.screen, ConversationList))

    play(scenario)


@pytest.mark.parametrize(("text", "words"), [("fail", "The engine is on fire."), ("break long", "The pool burst.")])
def test_failures_are_shown_and_the_chat_goes_on(play: Callable[[Scenario], ChatApp], text: str, words: str) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await ask(pilot, app, text)
        assert words in note(app)
        await ask(pilot, app, "hello")
        assert answer(app) == "You said: hello "

    play(scenario)


def test_leaving_in_the_middle_of_an_answer_keeps_it(play: Callable[[Scenario], ChatApp]) -> None:
    async def scenario(pilot: AppPilot, app: ChatApp) -> None:
        await write(pilot, "long story")
        await until(pilot, lambda: "word5" in answer(app) if app.query(AnswerView) else False)
        await pilot.press("ctrl+c")

    app = play(scenario)
    assert app.return_code == 0
    assert "word5" in app.store.list()[0].messages[-1].content


def test_without_a_server_it_ends_with_the_remedy(tmp_path: Path) -> None:
    async def go() -> MlxserveError | None:
        async with chat("http://127.0.0.1:9", Store(tmp_path)) as (pilot, app):
            await until(pilot, lambda: app.return_value is not None)
            return app.return_value

    error = asyncio.run(go())
    assert isinstance(error, ConfigError)
    assert "mlxserve serve" in error.message


def test_it_waits_for_the_server_it_started(tmp_path: Path) -> None:
    async def go() -> int:
        with SpawnedServer(["--load-s", "1.5"], tmp_path / "log", FAKE) as server:
            async with chat(server.base_url, Store(tmp_path), server=server) as (pilot, app):
                await until(pilot, lambda: "loading weights" in text_of(app.query_one("#log-line", Static)))
                assert app.query_one(Loading).display
                await until(pilot, lambda: 0.3 < (app.query_one(ProgressBar).percentage or 0) < 1)
                assert not app.query_one("#messages").display
                await until(pilot, lambda: bool(app.query("#welcome")))
                assert not app.query_one(Loading).display
                await ask(pilot, app, "hello")
        return server.port

    assert gone(asyncio.run(go()))


def test_a_server_that_cannot_start_ends_it(tmp_path: Path) -> None:
    async def go() -> MlxserveError | None:
        with SpawnedServer(["--bad"], tmp_path / "log", [sys.executable, "-m", "tests.fake_server"]) as server:
            async with chat(server.base_url, Store(tmp_path), server=server) as (pilot, app):
                await until(pilot, lambda: app.return_value is not None)
                return app.return_value

    assert isinstance(asyncio.run(go()), EngineUnavailable)


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_themes(fake_url: str, tmp_path: Path, theme: Any) -> None:
    async def go() -> str:
        async with chat(fake_url, Store(tmp_path), theme=theme) as (pilot, app):
            await until(pilot, lambda: bool(app.query("#welcome")))
            return app.screen.styles.background.hex.lower()

    assert asyncio.run(go()) == theme.background


@pytest.mark.parametrize(
    ("answer", "light"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\", True),
        (b"\x1b]11;rgb:1c1c/1c1c/1c1c\x07", False),
        (b"\x1b]11;rgb:fd/f6/e3\x07", True),
        (b"\x1b[?1;2c", None),
        (b"", None),
    ],
)
def test_what_a_terminal_says_of_its_background(answer: bytes, light: bool | None) -> None:
    assert is_light(answer) is light
