"""Keeps control tokens that a client wrote as text from steering the model.

Before rendering, each occurrence of a control token's text in what the client sent is swapped for a placeholder of
random digits, which no template touches; in the rendered prompt the placeholders mark what is to be read literally.
Knows nothing of tokenizers beyond the texts of their control tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_NONCE_DIGITS = 24
_INDEX_DIGITS = 6


class Segment(NamedTuple):
    """A stretch of a rendered prompt."""

    text: str
    literal: bool  # control tokens in it are only text


class ControlTexts:
    """The texts of some control tokens, and how to find them and what could become them."""

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted(set(texts) - {""}, key=lambda text: (-len(text), text))
        self.texts = frozenset(longest_first)
        # "(?!)" matches nowhere
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = frozenset(text[:cut] for text in longest_first for cut in range(1, len(text)))
        self._endings = frozenset(text[cut:] for text in longest_first for cut in range(1, len(text)))
        self._longest = max(map(len, longest_first), default=0)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the text holds control texts, and the parts of one at its ends, which what a template writes before
        or after may complete. In order, without overlap."""
        whole = [match.span() for match in self.pattern.finditer(text)]
        if not whole and self._is_middle(text):
            return [(0, len(text))]
        before, after = (whole[0][0], whole[-1][1]) if whole else (len(text), 0)
        reach = range(self._longest - 1, 0, -1)
        head = next((n for n in reach if n <= before and text[:n] in self._endings), 0)
        tail = next((n for n in reach if n <= len(text) - after and text[-n:] in self._beginnings), 0)
        if not whole and head + tail > len(text):
            return [(0, len(text))]
        return [(0, head)] * bool(head) + whole + [(len(text) - tail, len(text))] * bool(tail)

    def _is_middle(self, text: str) -> bool:
        """Whether it may be all but the brackets of a control token. A mere word is not: templates ask for those."""
        if not 0 < len(text) < self._longest or (text[0].isalnum() and text[-1].isalnum()):
            return False
        return any(text in control for control in self.texts)


class Placeholders:
    """The placeholders of one prompt. Made anew for each: who has read one could forge it in the next."""

    def __init__(self) -> None:
        self._nonce = "".join(secrets.choice("0123456789") for _ in range(_NONCE_DIGITS))
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._texts)

    def protect(self, value: Any, controls: ControlTexts) -> Any:
        """The value with every control text in its strings, and in its keys, swapped for a placeholder."""
        if isinstance(value, str):
            return self._protect_text(value, controls)
        if isinstance(value, Mapping):
            return {self.protect(key, controls): self.protect(item, controls) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item, controls) for item in value]
        return value

    def segments(self, rendered: str) -> list[Segment]:
        """The rendered prompt, cut at the placeholders, with their texts back in place as literal segments."""
        pieces = re.split(rf"{self._nonce}(\d{{{_INDEX_DIGITS}}})", rendered)
        return [
            Segment(self._texts[int(piece)] if index % 2 else piece, literal=index % 2 == 1)
            for index, piece in enumerate(pieces)
            if piece
        ]

    def _protect_text(self, text: str, controls: ControlTexts) -> str:
        parts, done = [], 0
        for start, end in controls.spans(text):
            parts += [text[done:start], self._placeholder(text[start:end])]
            done = end
        return "".join([*parts, text[done:]])

    def _placeholder(self, text: str) -> str:
        if text not in self._texts:
            self._texts.append(text)
        return f"{self._nonce}{self._texts.index(text):0{_INDEX_DIGITS}d}"
