"""The parts of the screen: a message, an answer that may still be growing, the message box, the list of conversations.

They show and report; what is sent and kept is the app's business.
"""

from __future__ import annotations

from typing import ClassVar

from markdown_it import MarkdownIt
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Collapsible, Label, Markdown, OptionList, ProgressBar, Static, TextArea
from textual.widgets.markdown import MarkdownStream
from textual.widgets.option_list import Option

from mlxserve.tui.conversation import Conversation
from mlxserve.tui.thinking import split_thinking


class UserMessage(Static):
    """What the user wrote, as it is."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(text))


class Notice(Static):
    """Something the client says."""

    def __init__(self, text: str, *, error: bool = False) -> None:
        super().__init__(Content(text), classes="error" if error else "")


def _parser() -> MarkdownIt:
    # HTML is shown as it was written: a terminal has no other use for it.
    return MarkdownIt("gfm-like").disable(["html_block", "html_inline"])


class AnswerView(Vertical):
    """An answer: reasoning folded away, Markdown, and a line of figures."""

    def __init__(self) -> None:
        super().__init__()
        self._markdown = Markdown(parser_factory=_parser, open_links=False)
        self._thought = Static()
        self._thinking = Collapsible(self._thought, title="Thinking…", collapsed=True)
        self._thinking.display = False
        self._note = Label(classes="note")
        self._stream: MarkdownStream | None = None
        self._shown = ""  # what the Markdown has

    def compose(self) -> ComposeResult:
        yield self._thinking
        yield self._markdown
        yield self._note

    @on(Markdown.LinkClicked)
    def follow(self, event: Markdown.LinkClicked) -> None:
        """A model may write any address; only pages are opened, never files or other programs' schemes."""
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)

    async def grow(self, content: str, reasoning: str, note: str) -> None:
        """Shows an answer as far as it has come."""
        answer = self._think(content, reasoning)
        if answer.startswith(self._shown):
            if answer != self._shown:
                self._stream = self._stream or Markdown.get_stream(self._markdown)
                await self._stream.write(answer[len(self._shown) :])
                self._shown = answer
        else:  # what looked like the answer has turned out to be reasoning
            await self._replace(answer)
        self._note.update(Content(note))

    async def finish(self, content: str, reasoning: str, note: str, *, error: bool = False) -> None:
        """Shows the whole of an answer that has ended."""
        await self._replace(self._think(content, reasoning))
        self._note.update(Content(note))
        self._note.set_class(error, "error")

    async def _replace(self, answer: str) -> None:
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        if answer != self._shown:
            await self._markdown.update(answer)
            self._shown = answer

    def _think(self, content: str, reasoning: str) -> str:
        parts = split_thinking(content)
        thinking = "\n\n".join(text for text in (reasoning, parts.thinking) if text)
        if thinking:
            self._thinking.display = True
            self._thinking.title = "Thinking…" if parts.open or not parts.answer else "Thought about it"
            self._thought.update(Content(thinking))
        return parts.answer


class Composer(TextArea):
    """The message box. It grows with its text, up to six lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False),
    ]

    class Submitted(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class EditLast(Message):
        """Up was pressed in an empty box."""

    def __init__(self) -> None:
        super().__init__(placeholder="Message, or /help", highlight_cursor_line=False, compact=True, id="composer")

    def action_newline(self) -> None:
        self.insert("\n")

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            text = self.text
            self.clear()
            self.post_message(self.Submitted(text))
        elif event.key == "up" and not self.text:
            event.stop()
            event.prevent_default()
            self.post_message(self.EditLast())
        else:
            await super()._on_key(event)

    def fill(self, text: str) -> None:
        """Puts text in the box, with the cursor at its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)


class Loading(Vertical):
    """What is seen while a spawned server loads its model."""

    def __init__(self, log: str) -> None:
        super().__init__(id="loading")
        self._status = Label("Starting the server")
        self._bar = ProgressBar(show_eta=False)
        self._line = Static(id="log-line")
        self._log = log

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._bar
        yield self._line
        yield Static(Content(f"Its log: {self._log}"), classes="dim")

    def progress(self, seconds: float, line: str, loaded: float | None) -> None:
        """``loaded``: the share of the model; None: not known, and the bar only moves."""
        self._bar.update(total=None if loaded is None else 1.0, progress=loaded or 0.0)
        self._status.update(f"Loading the model, {seconds:.0f} s")
        self._line.update(Content(line))


class ConversationList(ModalScreen[str | None]):
    """Chooses a kept conversation; gives its id, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, conversations: list[Conversation]) -> None:
        super().__init__()
        self._conversations = conversations

    def compose(self) -> ComposeResult:
        with Vertical(id="conversation-list"):
            yield Label("Conversations", classes="heading")
            yield OptionList(
                *(
                    Option(Content(f"{c.updated[:16].replace('T', ' ')}  {c.title or 'Untitled'}"), id=c.id)
                    for c in self._conversations
                )
            )
            yield Label("Enter opens, Escape goes back", classes="dim")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)
