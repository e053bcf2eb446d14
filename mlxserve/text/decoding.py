"""Token ids to text, a step at a time: which bytes each token stands for, and decoders that never cut a character.

Most tokenizers decode token by token to bytes, so a table of them and an incremental UTF-8 decoder give the text;
what ``tokenizers``' other decoders do is found by decoding everything again. Knows nothing of stops or of requests.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest for U+0100 onwards, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if byte not in printable)
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


class TextDecoder(Protocol):
    """One text in the making. What ``feed`` returned, joined, and then ``flush`` once, is the text of all ids."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now; bytes of an unfinished character stay inside."""
        ...

    def flush(self) -> str:
        """The rest: an unfinished character becomes one U+FFFD."""
        ...


class TokenBytes(dict[int, bytes]):
    """Bytes by token id, filled as they are first asked for: big vocabularies cost nothing at load."""

    def __init__(self, of: Callable[[int], bytes]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, token_id: int) -> bytes:
        value = self[token_id] = self._of(token_id)
        return value


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How a tokenizer spells bytes, and what its decoder drops at the start of a text."""

    to_bytes: Callable[[str], bytes]
    to_first_bytes: Callable[[str], bytes] | None = None  # of the first token shown, where it differs
    leading_spaces: int = 0  # dropped from the start of the whole text


def byte_rule(backend: Backend) -> ByteRule | None:
    """The rule that the backend's decoder amounts to; None when it is not one of bytes."""
    if backend.decoder is None:
        return None
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return ByteRule(_byte_level)
    if kinds[:1] == ["Metaspace"] and kinds[1:] in ([], ["Fuse"], ["ByteFallback"], ["ByteFallback", "Fuse"]):
        return _metaspace(steps[0], byte_fallback="ByteFallback" in kinds)
    return _sentencepiece(steps)


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:  # an added token, spelt as it reads
        return token.encode()


def _metaspace(step: dict[str, Any], byte_fallback: bool) -> ByteRule:
    """In the first token of a text the decoder drops every replacement character, unless the scheme is never."""
    mark: str = step["replacement"]
    to_bytes = _replacing([(mark, " ")], byte_fallback)
    return ByteRule(to_bytes, None if step["prepend_scheme"] == "never" else _replacing([(mark, "")], byte_fallback))


def _sentencepiece(steps: list[dict[str, Any]]) -> ByteRule | None:
    """Replace..., then ByteFallback, Fuse and a Strip of leading spaces, each as far as it is there."""
    rest = list(steps)
    replaced: list[tuple[str, str]] = []
    while rest and rest[0]["type"] == "Replace" and "String" in rest[0]["pattern"]:
        step = rest.pop(0)
        replaced.append((step["pattern"]["String"], step["content"]))
    kinds = [step["type"] for step in rest]
    to_bytes = _replacing(replaced, "ByteFallback" in kinds)
    if kinds in (["ByteFallback"], ["ByteFallback", "Fuse"], ["Fuse"]):
        return ByteRule(to_bytes)
    if kinds in (["ByteFallback", "Fuse", "Strip"], ["Fuse", "Strip"]):
        strip = rest[-1]
        if strip["content"] == " " and strip["stop"] == 0:
            return ByteRule(to_bytes, leading_spaces=strip["start"])
    return None


def _replacing(pairs: list[tuple[str, str]], byte_fallback: bool) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        for old, new in pairs:
            token = token.replace(old, new)
        if byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return token.encode()

    return to_bytes


class ByteDecoder:
    """Joins the tokens' bytes and decodes UTF-8; bytes that are not UTF-8 become U+FFFD, as in ``bytes.decode``."""

    __slots__ = ("_first", "_rest", "_spaces", "_table")

    def __init__(self, table: TokenBytes, first: TokenBytes | None = None, leading_spaces: int = 0) -> None:
        """``table``: b"" for what is not shown. ``first`` takes its place up to the first token that is shown."""
        self._table = table
        self._first = first
        self._spaces = leading_spaces
        self._rest = b""

    def feed(self, ids: Sequence[int]) -> str:
        if self._first is not None or self._spaces:
            return self._feed_start(ids)
        table = self._table
        data = self._rest + (table[ids[0]] if len(ids) == 1 else b"".join([table[i] for i in ids]))
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        return text

    def _feed_start(self, ids: Sequence[int]) -> str:
        data = self._rest
        for token_id in ids:
            if self._first is not None and self._table[token_id]:
                data += self._first[token_id]
                self._first = None
            else:
                data += self._table[token_id]
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        while self._spaces and text:
            if text[0] != " ":
                self._spaces = 0
                break
            text, self._spaces = text[1:], self._spaces - 1
        return text

    def flush(self) -> str:
        text, self._rest = self._rest.decode("utf-8", "replace"), b""
        return text


class WholeDecoder:
    """For any decoder: decodes all ids anew at each step, and shows what no later token can change.

    Its cost grows with the square of the length; the tokenizers of chat models do not need it.
    """

    __slots__ = ("_decode", "_ids", "_shown")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = ""

    def feed(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        text = self._decode(self._ids).rstrip(REPLACEMENT)
        return self._show(text) if text.startswith(self._shown) else ""

    def flush(self) -> str:
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        new, self._shown = text[len(self._shown) :], text
        return new
