"""Everything between a request's text and the engine's token ids, for one model. Knows nothing of HTTP."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxserve.errors import BadRequest
from mlxserve.text.control import ControlTexts, Placeholders
from mlxserve.text.messages import Message, normalise_messages
from mlxserve.text.segments import SegmentEncoder
from mlxserve.text.stream import OutputStream
from mlxserve.text.template import ChatTemplate
from mlxserve.text.tokenizer import Tokenizer

# Put after the last message to find where it ends in the rendered prompt. The space shows whether it was trimmed.
_END_MARK = "\N{WORD JOINER}[the message to be continued ends here]\N{WORD JOINER} "

_WEIGHED = 1 << 16  # characters: shorter texts are encoded sooner than weighed

# Is told, before a long prompt is encoded, how many tokens it has at least, and raises if those are too many.
Fits = Callable[[int], None]


class TextProcessor:
    """Thread-safe; rendering and encoding a long conversation takes long enough to belong off an event loop."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        special = {token.content for token in tokenizer.added_tokens.values() if token.special}
        self._special = ControlTexts(special)
        self._controls = ControlTexts(special | self._template_tokens())

    def chat_prompt(
        self,
        messages: object,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        fits: Fits | None = None,
    ) -> list[int]:
        """The prompt of a conversation in OpenAI's form. Control tokens come from the template alone.

        ``add_generation_prompt`` None: unless ``continue_final_message``. Raises BadRequest, and what ``fits`` does.
        """
        places = Placeholders()
        rendered = self._render(messages, tools, add_generation_prompt, continue_final_message, kwargs, places)
        if not places:
            self._weigh(rendered, fits)
            return self.tokenizer.encode(rendered, add_special_tokens=False)
        segments = places.segments(rendered)
        self._weigh("".join(segment.text for segment in segments), fits)
        return self._segment_encoder.encode(segments)

    def render_chat(
        self,
        messages: object,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the same prompt, in which control tokens and their imitations look alike."""
        return self._render(messages, tools, add_generation_prompt, continue_final_message, kwargs, None)

    def completion_prompt(self, text: str, fits: Fits | None = None) -> list[int]:
        """Control tokens are recognised. BOS is not added to a text that begins with it. Raises what ``fits`` does."""
        self._weigh(text, fits)
        bos = self.tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        return self.tokenizer.encode(text, add_special_tokens=not has_bos)

    def output(self, stop: tuple[str, ...] = (), min_tokens: int = 0, *, starts_text: bool = False) -> OutputStream:
        """The text of one choice. ``starts_text``: a chat answer of its own, which loses the space that SentencePiece
        puts before a text; what continues a prompt keeps it."""
        return OutputStream(self.tokenizer.decoder(starts_text=starts_text), stop, min_tokens)

    def _weigh(self, text: str, fits: Fits | None) -> None:
        if fits is not None and len(text) > _WEIGHED:
            fits(self.tokenizer.least_tokens(text))

    @functools.cached_property
    def _segment_encoder(self) -> SegmentEncoder:
        return SegmentEncoder(self.tokenizer, self._controls)

    def _template_tokens(self) -> set[str]:
        """Tokens that steer without being marked as special: what the template writes itself, but white space."""
        if self.template is None:
            return set()
        written = "\0".join(self.template.literals)
        texts = {token.content for token in self.tokenizer.added_tokens.values()}
        return {text for text in texts if text in written and not text.isspace()}

    def _render(
        self,
        messages: object,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        kwargs: Mapping[str, Any] | None,
        places: Placeholders | None,
    ) -> str:
        if self.template is None:
            raise BadRequest("this model has no chat template", param="messages", code="no_chat_template")
        if continue_final_message and add_generation_prompt:
            raise BadRequest(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        chat = normalise_messages(messages)
        if places is not None:
            chat = [self._protected(message, places) for message in chat]
            tools, kwargs = places.protect(tools, self._controls), places.protect(kwargs, self._controls)
        if not continue_final_message:
            generate = add_generation_prompt is not False
            return self.template.render(chat, tools=tools, add_generation_prompt=generate, kwargs=kwargs)
        chat[-1] = _marked(chat[-1])
        rendered = self.template.render(chat, tools=tools, add_generation_prompt=False, kwargs=kwargs)
        return _cut_at_mark(rendered)

    def _protected(self, message: Message, places: Placeholders) -> Message:
        """An assistant's turn may hold what the model itself wrote: of its tokens only the special ones are guarded."""
        protected: Message = places.protect(
            message, self._special if message["role"] == "assistant" else self._controls
        )
        return protected


def _marked(message: Message) -> Message:
    if not message.get("content"):
        raise BadRequest("continue_final_message is set, but the last message has no content", param="messages")
    return {**message, "content": message["content"] + _END_MARK}


def _cut_at_mark(rendered: str) -> str:
    """The prompt up to the end of the last message; trailing space that the template trims stays trimmed."""
    end = rendered.rfind(_END_MARK.rstrip(" "))
    if end < 0:
        raise BadRequest("the chat template does not show the message to be continued", param="messages")
    trimmed = not rendered.startswith(_END_MARK, end)
    return rendered[:end].rstrip() if trimmed else rendered[:end]
