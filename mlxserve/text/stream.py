"""The visible text of one choice: token ids in, pieces of text out, ended by stop strings.

Knows nothing of end-of-sequence tokens, lengths or reasons to finish: the engine decides those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlxserve.text.decoding import TextDecoder
from mlxserve.text.stops import StopMatcher


class Piece(NamedTuple):
    """What one push added."""

    text: str  # may be empty
    stopped: bool  # a stop string matched: the text ends before it, later tokens do not count
    kept: int  # tokens of this choice that count, up to and including the one that completed the match


class OutputStream:
    """One choice's text. Not thread-safe."""

    __slots__ = ("_decoder", "_kept", "_matcher", "_min_tokens", "_pending", "_stopped")

    def __init__(self, decoder: TextDecoder, stop: tuple[str, ...] = (), min_tokens: int = 0) -> None:
        """A stop string counts once a token after the first ``min_tokens`` completes it."""
        self._decoder = decoder
        self._matcher = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._kept = 0
        self._pending = ""  # held back: it may begin a stop string
        self._stopped = False

    def push(self, token_ids: Sequence[int]) -> Piece:
        """The text that the tokens make certain. After a stop string nothing is added any more."""
        if self._matcher is None:
            self._kept += len(token_ids)
            return Piece(self._decoder.feed(token_ids), False, self._kept)
        shown = []
        for token_id in token_ids:
            if self._stopped:
                break
            self._kept += 1
            shown.append(self._match(self._matcher, self._decoder.feed((token_id,))))
        return Piece("".join(shown), self._stopped, self._kept)

    def finish(self) -> str:
        """The text still held back, once no more tokens come; a cut character is one U+FFFD."""
        if self._stopped:
            return ""
        text = self._decoder.flush()
        if self._matcher is None:
            return text
        text = self._match(self._matcher, text) + self._pending
        self._pending = ""
        return text

    def _match(self, matcher: StopMatcher, text: str) -> str:
        match = matcher.feed(text, armed=self._kept > self._min_tokens)
        ready = len(self._pending) + (len(text) - matcher.held if match is None else match.end - match.length)
        text = self._pending + text
        if match is None:
            self._pending = text[ready:]
        else:
            self._pending, self._stopped = "", True
        return text[:ready]
