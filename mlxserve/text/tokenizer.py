"""A model's tokenizer: text to ids and back, and what each token stands for.

A thin layer over the ``tokenizers`` package, whatever files it was built from. Knows no chat template.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from mlxserve.text.bound import TokenBound, token_bound
from mlxserve.text.decoding import ByteDecoder, TextDecoder, TokenBytes, WholeDecoder, byte_rule

# How models that fill in the middle spell the tokens before the prefix, the suffix and the middle.
_FIM_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)


class Tokenizer:
    """Thread-safe: nothing changes once it is built."""

    def __init__(
        self, backend: Backend, special_tokens: Mapping[str, str] | None = None, eos_token_ids: Iterable[int] = ()
    ) -> None:
        """``special_tokens``: texts by role ("bos_token", "eos_token", ...), as chat templates know them.
        ``eos_token_ids``: those that other files of the model name, beside the tokenizer's own.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.bos_token = self.special_tokens.get("bos_token")
        own_eos = backend.token_to_id(self.special_tokens.get("eos_token", ""))
        self.eos_token_ids = tuple(sorted({*eos_token_ids, *([] if own_eos is None else [own_eos])}))
        self.added_tokens: Mapping[int, AddedToken] = backend.get_added_tokens_decoder()
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.fim_tokens = self._find_fim_tokens()
        self._special = frozenset(i for i, token in self.added_tokens.items() if token.special)
        self._rule = byte_rule(backend)
        self._bytes = TokenBytes(self._bytes_of)
        self._shown = TokenBytes(lambda i: b"" if i in self._special else self._bytes[i])
        self._first = TokenBytes(self._first_bytes_of)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Control tokens in the text are recognised; BOS is added if the tokenizer says so, unless told not to."""
        return encode(self.backend, text, add_special_tokens=add_special_tokens)

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least; told from its size, 0 where that tells nothing."""
        return 0 if self._bound is None else self._bound.least(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of its own that the ids are. Special tokens are skipped."""
        decoder = self.decoder(starts_text=True)
        return decoder.feed(ids) + decoder.flush() if ids else ""

    def decoder(self, *, starts_text: bool) -> TextDecoder:
        """``starts_text``: the ids begin a text. If not, they continue one, and a leading space is kept."""
        if self._rule is None:
            return WholeDecoder(self._decode_whole)
        if not starts_text:
            return ByteDecoder(self._shown)
        first = None if self._rule.to_first_bytes is None else self._first
        return ByteDecoder(self._shown, first, self._rule.leading_spaces)

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly what the token stands for: its text's bytes if special, b"" for an id that does not exist."""
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """As ``token_bytes``; what is no whole character is shown as U+FFFD."""
        return self._bytes[token_id].decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token controls the model and is never shown as text."""
        return token_id in self._special

    @functools.cached_property
    def _bound(self) -> TokenBound | None:
        return token_bound(self.backend, self.added_tokens.values())

    def _bytes_of(self, token_id: int) -> bytes:
        token: str | None = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._special:
            return token.encode()
        if self._rule is None:
            return self._decode_whole([token_id]).encode()
        return self._rule.to_bytes(token)

    def _first_bytes_of(self, token_id: int) -> bytes:
        token: str | None = self.backend.id_to_token(token_id)
        assert token is not None, token_id
        assert self._rule is not None
        assert self._rule.to_first_bytes is not None
        return self._rule.to_first_bytes(token)

    def _decode_whole(self, ids: Sequence[int]) -> str:
        text: str = self.backend.decode(ids, skip_special_tokens=True)
        return text

    def _find_fim_tokens(self) -> tuple[int, int, int] | None:
        for spelling in _FIM_SPELLINGS:
            prefix, suffix, middle = (self.backend.token_to_id(token) for token in spelling)
            if prefix is not None and suffix is not None and middle is not None:
                return prefix, suffix, middle
        return None


def encode(backend: Backend, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text. Other threads run meanwhile: of the package's methods only those for batches let them."""
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


def add_at_ends(backend: Backend, bos: str | None, eos: str | None) -> None:
    """Makes ``encode`` put ``bos`` before and ``eos`` after each text; None: nothing there."""
    tokens = [token for token in (bos, eos) if token is not None]
    before, after = [[] if token is None else [token] for token in (bos, eos)]
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=[(token, backend.token_to_id(token)) for token in tokens]
    )
