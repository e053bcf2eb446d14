"""How few tokens a text can have, told from its size: what can never fit is refused without being encoded.

Each token stands for at most so many bytes, unless the tokenizer drops or shortens text on the way; then nothing is
claimed. Knows nothing of limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from mlxserve.text.decoding import BYTE_ALPHABET

# Canonical composition: no character is more than 3 times as long as its decomposition ("K" for the Kelvin sign), none
# less than a third ("ΐ"), and text and result have the same decomposition.
_NFC_SHRINKS = 9
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True, slots=True)
class TokenBound:
    """``longest``: the most bytes of normalised text that one token stands for. ``missing``: bytes that no token has,
    which vanish. ``composes``: the normaliser is NFC."""

    longest: int
    missing: bytes
    composes: bool

    def least(self, text: str) -> int:
        """A number of tokens that the text has at least."""
        size = self._composed(text) if self.composes else self._size(text.encode("utf-8", "surrogatepass"))
        return -(-size // self.longest)

    def _size(self, data: bytes) -> int:
        return len(data.translate(None, self.missing))

    def _composed(self, text: str) -> int:
        plain = text.encode("ascii", "ignore")
        others = len(text) - len(plain)  # each can take at most one ASCII letter into a character of its own
        shrunk = 0 if self.missing else -(-len(text.encode("utf-8", "surrogatepass")) // _NFC_SHRINKS)
        return max(self._size(plain) - others, shrunk)


def token_bound(backend: Backend, added: Iterable[AddedToken]) -> TokenBound | None:
    """None where a token may stand for any length of text: unknown words, dropped spaces, other normalisers."""
    added = list(added)
    normalizers = _steps(backend.normalizer, "normalizers")
    if not all(map(_keeps_size, normalizers)) or not all(map(_keeps_text, _steps(backend.pre_tokenizer))):
        return None
    if any(token.lstrip or token.rstrip for token in added):  # takes all the spaces beside it
        return None
    vocab = backend.get_vocab(with_added_tokens=False)
    byte_level = any(step["type"] == "ByteLevel" for step in _steps(backend.pre_tokenizer))
    if byte_level and isinstance(backend.model, models.BPE):
        missing = bytes(byte for letter, byte in BYTE_ALPHABET.items() if letter not in vocab)
    elif not byte_level and vocab.keys() >= _BYTE_TOKENS and _falls_back(backend):
        missing = b""
    else:
        return None
    spelled = max(len(token) if byte_level else len(token.encode()) for token in vocab)
    longest = max([spelled, *(_added_size(backend, token.content) for token in added)])
    return TokenBound(longest, missing, any(step["type"] == "NFC" for step in normalizers))


def _steps(part: Any, members: str = "pretokenizers") -> list[Mapping[str, Any]]:
    """A normaliser or pre-tokenizer as its steps in order."""
    if part is None:
        return []
    return _flat(json.loads(part.__getstate__()), members)


def _flat(state: Mapping[str, Any], members: str) -> list[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [step for member in state[members] for step in _flat(member, members)]


def _keeps_size(normalizer: Mapping[str, Any]) -> bool:
    """Whether the text never has fewer bytes afterwards; NFC is reckoned with apart."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return pattern is not None and len(normalizer["content"].encode()) >= len(pattern.encode())
    return normalizer["type"] in ("NFC", "Prepend")


def _keeps_text(pre_tokenizer: Mapping[str, Any]) -> bool:
    if pre_tokenizer["type"] == "Split":
        return bool(pre_tokenizer["behavior"] != "Removed")
    return pre_tokenizer["type"] in ("ByteLevel", "Digits", "Metaspace")


def _falls_back(backend: Backend) -> bool:
    """Whether unknown characters become tokens of single bytes."""
    return bool(json.loads(backend.model.__getstate__()).get("byte_fallback"))


def _added_size(backend: Backend, content: str) -> int:
    """Bytes of an added token, found in the text before or after it is normalised."""
    normalised = content if backend.normalizer is None else backend.normalizer.normalize_str(content)
    return max(len(content.encode()), len(normalised.encode()))
