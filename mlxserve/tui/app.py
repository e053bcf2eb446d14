"""The terminal client: one screen, one conversation, one answer at a time.

Puts client, store and widgets together; the wire, the files and the widgets each have their own module.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.theme import Theme
from textual.widgets import Static
from textual.worker import Worker, WorkerCancelled

from mlxserve.errors import MlxserveError
from mlxserve.tui.client import Answer, ChatClient, ChatFailed
from mlxserve.tui.commands import run_command
from mlxserve.tui.conversation import Conversation, Message, Store, new_conversation
from mlxserve.tui.plain import connect
from mlxserve.tui.spawn import SpawnedServer
from mlxserve.tui.theme import DARK, LIGHT
from mlxserve.tui.widgets import AnswerView, Composer, ConversationList, Loading, Notice, UserMessage

WELCOME = "Write a message and press Enter. /help lists the commands."
HINTS = "Enter send  ^J new line  Esc stop  Up edit  ^R new  ^L open  ^C quit"


@dataclass(slots=True)
class Startup:
    """What the client starts with."""

    client: ChatClient
    store: Store
    conversation: Conversation
    theme: Theme
    server: SpawnedServer | None = None


class ChatApp(App[MlxserveError | None]):
    """Returns the error that kept it from connecting, if one did."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "Quit", priority=True),
        Binding("ctrl+r", "fresh", "New", priority=True),
        Binding("ctrl+l", "choose", "Open", priority=True),
        Binding("escape", "stop", "Stop"),
    ]

    def __init__(self, startup: Startup) -> None:
        super().__init__()
        self.store = startup.store
        self.conversation = startup.conversation
        self._client = startup.client
        self._server = startup.server
        self._model: str | None = None
        self._answering: Worker[None] | None = None
        self._editing: int | None = None  # index of the message that the box replaces
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = startup.theme.name

    def compose(self) -> ComposeResult:
        yield Static(id="bar")
        if self._server is not None:
            yield Loading(str(self._server.log))
        yield VerticalScroll(id="messages")
        with Vertical(id="composer-box"):
            yield Composer()
        yield Static(HINTS, id="hints")

    def on_mount(self) -> None:
        self._show_loading(self._server is not None)
        self.query_one(Composer).focus()
        self.query_one("#messages").anchor()
        self.run_worker(self._connect(), exit_on_error=True)

    def _show_loading(self, loading: bool) -> None:
        for selector in ("#messages", "#composer-box"):
            self.query_one(selector).display = not loading
        for widget in self.query(Loading):
            widget.display = loading

    async def _connect(self) -> None:
        try:
            if self._server is not None:
                await self._server.wait_ready(self._client, self.query_one(Loading).progress)
            self._model = await connect(self._client, None)
        except MlxserveError as error:
            self.exit(error)
            return
        self._show_loading(False)
        self.query_one(Composer).focus()
        await self.open(self.conversation)

    # What commands and keys do.

    async def open(self, conversation: Conversation) -> None:
        """Shows a conversation. Ends an answer that is under way."""
        await self._end_answer()
        self.conversation = conversation
        self._editing = None
        await self._draw()

    async def fresh(self) -> None:
        """A new conversation with this one's settings."""
        await self.open(new_conversation(self.conversation.system, self.conversation.sampling))

    async def choose(self) -> None:
        conversations = self.store.list()
        if not conversations:
            await self._say("No conversation has been kept yet.")
            return

        async def chosen(conversation_id: str | None) -> None:
            if conversation_id is not None:
                await self.open(self.store.load(conversation_id))

        self.push_screen(ConversationList(conversations), chosen)

    async def action_fresh(self) -> None:
        if self._model is not None:
            await self.fresh()

    async def action_choose(self) -> None:
        if self._model is not None and not isinstance(self.screen, ConversationList):
            await self.choose()

    async def action_stop(self) -> None:
        if self._answering is not None:
            await self._end_answer()
        elif self._editing is not None:
            self._editing = None
            self.query_one(Composer).clear()
            self._status()

    async def _end_answer(self) -> None:
        worker = self._answering
        if worker is None:
            return
        if not worker.is_cancelled:  # a second cancel would cut short what the first one does at the end
            worker.cancel()
        with suppress(WorkerCancelled):
            await worker.wait()

    # The screen.

    async def _draw(self) -> None:
        messages = self.query_one("#messages")
        await messages.remove_children()
        if not self.conversation.messages:
            await messages.mount(Static(WELCOME, id="welcome"))
        for message in self.conversation.messages:
            if message.role == "user":
                await messages.mount(UserMessage(message.content))
            else:
                view = AnswerView()
                await messages.mount(view)
                await view.finish(message.content, message.reasoning, message.note)
        self._status()

    def _status(self) -> None:
        title = self.conversation.title or "New conversation"
        state = "  (editing the last message; Esc leaves it)" if self._editing is not None else ""
        self.query_one("#bar", Static).update(Content(f"{self._model}  {title}{state}"))

    async def _say(self, text: str, *, error: bool = False) -> None:
        if text:
            await self.query_one("#messages").mount(Notice(text, error=error))

    # Messages.

    @on(Composer.EditLast)
    def edit_last(self) -> None:
        index = self.conversation.last_user()
        if index is not None and self._answering is None:
            self._editing = index
            self.query_one(Composer).fill(self.conversation.messages[index].content)
            self._status()

    @on(Composer.Submitted)
    async def submit(self, event: Composer.Submitted) -> None:
        text = event.text.strip()
        composer = self.query_one(Composer)
        if self._answering is not None or self._model is None:
            composer.fill(event.text)  # it stays in the box until the answer has ended
        elif text.startswith("/"):
            try:
                await self._say(await run_command(self, text))
            except MlxserveError as error:
                await self._say(error.message, error=True)
            self._status()
        elif text:
            await self._send(text)

    async def _send(self, text: str) -> None:
        if self._editing is not None:
            del self.conversation.messages[self._editing :]
            self._editing = None
        self.conversation.messages.append(Message("user", text))
        await self._draw()
        self._answering = self.run_worker(self._answer(self.conversation), exit_on_error=True)

    async def _answer(self, conversation: Conversation) -> None:
        assert self._model is not None
        view = AnswerView()
        messages = self.query_one("#messages")
        await messages.mount(view)
        messages.anchor()
        turns = conversation.turns()
        message = Message("assistant", "")
        conversation.messages.append(message)
        answer, ending, failed = Answer(), "stopped", False
        try:
            async with aclosing(self._client.chat(self._model, turns, conversation.sampling)) as answers:
                async for answer in answers:
                    await view.grow(answer.content, answer.reasoning, answer.facts())
            ending = "ended at the token limit" if answer.finish_reason == "length" else ""
        except ChatFailed as error:
            ending, failed = error.message, True
        finally:
            # Also when cancelled: what has come stays in the conversation.
            message.content, message.reasoning = answer.content, answer.reasoning
            message.note = ", ".join(part for part in (ending, answer.facts()) if part)
            await self._keep(conversation)
            if view.is_attached:  # else the screen has gone
                await view.finish(message.content, message.reasoning, message.note, error=failed)
            self._answering = None

    async def _keep(self, conversation: Conversation) -> None:
        try:
            self.store.save(conversation)
        except MlxserveError as error:
            await self._say(error.message, error=True)
        self._status()
