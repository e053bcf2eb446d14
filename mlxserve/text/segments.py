"""Encodes a prompt in which some stretches must be read literally, in one pass like any other text.

A second tokenizer shares the first one's model, but has its control tokens under unguessable names. Where a control
token is meant, its name is put; what is only text stays, and no longer means anything. Encoding the whole at once
keeps everything else as it is: what surrounds a control token, spaces put before words, merges across segments.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mlxserve.text.control import ControlTexts, Segment
from mlxserve.text.tokenizer import Tokenizer, encode


class SegmentEncoder:
    """Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, controls: ControlTexts) -> None:
        nonce = secrets.token_hex(12)
        self._controls = controls
        self._names = {text: f"<{nonce}:{index}>" for index, text in enumerate(controls.texts)}
        self._cut = f"<{nonce}>"
        self._token_to_id = tokenizer.backend.token_to_id
        self._backend = self._renamed(tokenizer)
        texts = {name: text for text, name in self._names.items()}
        added = self._backend.get_added_tokens_decoder()
        self._ids = {i: self._token_to_id(texts.get(token.content, token.content)) for i, token in added.items()}

    def encode(self, segments: Sequence[Segment]) -> list[int]:
        """No BOS is added: the segments are a rendered template, which writes its own."""
        ids = self._backend_ids(segments, cut="")
        literal = {segment.text for segment in segments if segment.literal} & self._controls.texts
        found_in_text = set(ids) - self._ids.keys()
        if not found_in_text.isdisjoint(self._token_to_id(text) for text in literal):
            # A unigram model finds control tokens in plain text, for they are pieces like others: give it no chance.
            ids = self._backend_ids(segments, cut=self._cut)
        own_ids = (self._ids.get(token_id, token_id) for token_id in ids)
        return [token_id for token_id in own_ids if token_id is not None]

    def _backend_ids(self, segments: Sequence[Segment], cut: str) -> list[int]:
        """``cut`` goes after the first character of literal text."""
        text = "".join(
            segment.text[:1] + cut + segment.text[1:] if segment.literal else self._named(segment.text)
            for segment in segments
        )
        return encode(self._backend, text, add_special_tokens=False)

    def _named(self, text: str) -> str:
        return self._controls.pattern.sub(lambda match: self._names[match[0]], text)

    def _renamed(self, tokenizer: Tokenizer) -> Backend:
        source = tokenizer.backend
        backend = Backend(source.model)
        backend.normalizer, backend.pre_tokenizer = source.normalizer, source.pre_tokenizer
        backend.add_tokens([AddedToken(self._cut, normalized=False)])
        for token in tokenizer.added_tokens.values():
            if token.content in self._names:
                token = AddedToken(
                    self._names[token.content], lstrip=token.lstrip, rstrip=token.rstrip, normalized=False
                )
            backend.add_tokens([token])
        return backend
