"""The tokenizer that a GGUF file carries, as it is stored. ``text/`` builds one from it; nothing is encoded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError
from mlxserve.formats.gguf import GGUFFile

TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A vocabulary with its rules. ``tokens[i]`` is token i; None where the file says nothing.

    ``token_types``: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    ``special_ids``: "bos", "eos", "eot", "eom", "unknown", "padding", ... as far as the file has them.
    """

    model: str  # "gpt2": byte-level BPE with merges; "llama": SentencePiece with scores
    pre: str | None  # the pre-tokeniser's name, for "gpt2"
    tokens: tuple[str, ...]
    token_types: NDArray[np.generic] | None
    scores: NDArray[np.generic] | None
    merges: tuple[str, ...] | None
    special_ids: Mapping[str, int]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    chat_template: str | None
    named_templates: Mapping[str, str]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return tuple(self.special_ids[name] for name in ("eos", "eot", "eom") if name in self.special_ids)


def tokenizer(file: GGUFFile) -> GGUFTokenizer:
    """Raises CheckpointError when the vocabulary is missing or its parts do not agree."""
    model, tokens = file.string("tokenizer.ggml.model"), file.strings("tokenizer.ggml.tokens")
    if model is None or not tokens:
        raise CheckpointError(f"{file.path}: the GGUF metadata has no tokenizer (tokenizer.ggml.model and .tokens)")
    types, scores = file.numbers("tokenizer.ggml.token_type"), file.numbers("tokenizer.ggml.scores")
    for name, array in (("token_type", types), ("scores", scores)):
        if array is not None and len(array) != len(tokens):
            raise CheckpointError(
                f"{file.path}: tokenizer.ggml.{name} has {len(array)} entries, but there are {len(tokens)} tokens"
            )
    return GGUFTokenizer(
        model=model,
        pre=file.string("tokenizer.ggml.pre"),
        tokens=tokens,
        token_types=types,
        scores=scores,
        merges=file.strings("tokenizer.ggml.merges"),
        special_ids=_special_ids(file, len(tokens)),
        add_bos=file.boolean("tokenizer.ggml.add_bos_token"),
        add_eos=file.boolean("tokenizer.ggml.add_eos_token"),
        add_space_prefix=file.boolean("tokenizer.ggml.add_space_prefix"),
        chat_template=file.string(TEMPLATE),
        named_templates={
            key.removeprefix(f"{TEMPLATE}."): value
            for key, value in file.metadata.items()
            if key.startswith(f"{TEMPLATE}.") and isinstance(value, str)
        },
    )


def _special_ids(file: GGUFFile, size: int) -> dict[str, int]:
    out = {}
    for key in file.metadata:
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            value = file.integer(key)
            if value is None or not 0 <= value < size:
                raise CheckpointError(f"{file.path}: {key} is {value}, but token ids are from 0 to {size - 1}")
            out[key.removeprefix("tokenizer.ggml.").removesuffix("_token_id")] = value
    return out
