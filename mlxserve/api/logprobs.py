"""Log-probabilities of tokens in OpenAI's two forms, chat's and completions'.

Knows how a token is written; knows nothing of where the numbers come from.
"""

from __future__ import annotations

from typing import Protocol

from mlxserve.api.answers import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from mlxserve.api.events import Event
from mlxserve.types import TokenLogprob

_LEAST = -9999.0  # JSON has no infinity; OpenAI writes this for a token that cannot come


class Vocabulary(Protocol):
    """What is asked of the tokenizer here."""

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


def written(token: int, vocabulary: Vocabulary) -> str:
    """A token's text; what is no whole character is written byte by byte, so that no two such tokens look alike."""
    text = vocabulary.token_text(token)
    if "\ufffd" not in text or text.encode() == vocabulary.token_bytes(token):
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in vocabulary.token_bytes(token))


def _finite(logprob: float) -> float:
    return logprob if logprob > _LEAST else _LEAST


def chat_logprobs(event: Event, vocabulary: Vocabulary) -> ChatLogprobs | None:
    """None when the event has none. ``bytes`` are the token's own, also for a part of a character."""
    if event.logprobs is None:
        return None
    return ChatLogprobs(content=[_chat_entry(entry, vocabulary) for entry in event.logprobs if entry is not None])


def _chat_entry(entry: TokenLogprob, vocabulary: Vocabulary) -> ChatLogprob:
    return ChatLogprob(
        token=written(entry.token_id, vocabulary),
        logprob=_finite(entry.logprob),
        bytes=list(vocabulary.token_bytes(entry.token_id)),
        top_logprobs=[
            TopLogprob(
                token=written(token, vocabulary),
                logprob=_finite(logprob),
                bytes=list(vocabulary.token_bytes(token)),
            )
            for token, logprob in entry.top
        ],
    )


class CompletionScores:
    """Completions' lists for one choice, event by event: ``text_offset`` counts the characters of the choice's text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._characters = 0  # begun so far

    def take(self, event: Event) -> CompletionLogprobs | None:
        """None when the event has no log-probabilities. A token in the middle of a character has the offset of that
        character; of alternatives that are written alike the most probable one is shown."""
        if event.logprobs is None:
            return None
        offsets = []
        for token in event.token_ids:
            raw = self._shown_bytes(token, event)
            inside = bool(raw) and raw[0] & 0xC0 == 0x80 and self._characters > 0
            offsets.append(self._characters - inside)
            self._characters += sum(byte & 0xC0 != 0x80 for byte in raw)
        return CompletionLogprobs(
            tokens=[written(token, self._vocabulary) for token in event.token_ids],
            token_logprobs=[None if entry is None else _finite(entry.logprob) for entry in event.logprobs],
            top_logprobs=[None if entry is None else self._alternatives(entry) for entry in event.logprobs],
            text_offset=offsets,
        )

    def _shown_bytes(self, token: int, event: Event) -> bytes:
        """A special token is text only where an echoed prompt spells it out."""
        raw = self._vocabulary.token_bytes(token)
        if not self._vocabulary.is_special(token):
            return raw
        spelled = event.is_prompt and event.text.startswith(raw.decode("utf-8", "replace"), self._characters)
        return raw if spelled else b""

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float]:
        best: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            best.setdefault(written(token, self._vocabulary), _finite(logprob))
        return best
