"""Builds the tokenizer of a directory in Hugging Face form, as ``transformers`` would. Executes nothing in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mlxserve.errors import CheckpointError
from mlxserve.formats.jsonfile import MAX_BYTES, read_json_if_present
from mlxserve.text.sentencepiece import build_backend, read_model
from mlxserve.text.tokenizer import Tokenizer, add_at_ends

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def build_tokenizer(path: Path, eos_token_ids: Iterable[int] = ()) -> Tokenizer:
    """From tokenizer.json, which says itself what ``encode`` adds, or else from tokenizer.model; with the tokens that
    tokenizer_config.json adds.

    Raises CheckpointError naming the file that is missing or damaged.
    """
    config = read_json_if_present(path / "special_tokens_map.json") | read_json_if_present(
        path / "tokenizer_config.json"
    )
    where = path / "tokenizer_config.json"
    named = {role: text for role in _ROLES if (text := _text(config.get(role), where)) is not None}
    if (path / "tokenizer.json").is_file():
        backend = _read_backend(path / "tokenizer.json")
        _add_tokens(backend, config, named.values(), where)
        return Tokenizer(backend, named, eos_token_ids)
    if not (path / "tokenizer.model").is_file():
        raise CheckpointError(f"{path} has neither tokenizer.json nor tokenizer.model")
    model = read_model(path / "tokenizer.model")
    roles = {role: model.pieces[index].text for role, index in model.special_ids.items()} | named
    # Legacy tokenizers put a space before what follows a control token, not only before the text.
    rules = replace(model.rules, prefix_after_control=config.get("legacy") is not False)
    backend = build_backend(model.pieces, rules)
    _add_tokens(backend, config, roles.values(), where)
    bos = roles.get("bos_token") if config.get("add_bos_token", True) else None
    add_at_ends(backend, bos, roles.get("eos_token") if config.get("add_eos_token") else None)
    return Tokenizer(backend, roles, eos_token_ids)


def _read_backend(file: Path) -> Backend:
    if (size := file.stat().st_size) > MAX_BYTES:
        raise CheckpointError(f"{file} has {size} bytes, but may have {MAX_BYTES}")
    data = file.read_bytes()
    try:
        backend = Backend.from_buffer(data)
        listed = msgspec.json.decode(data, type=_Listed).added_tokens
    except Exception as error:  # tokenizers raises plain Exception for whatever is wrong with the file
        raise CheckpointError(f"{file} is truncated, corrupt or not supported: {error}") from error
    for token in listed:
        if backend.token_to_id(token.content) != token.id:  # it numbers tokens anew where ids have gaps
            raise CheckpointError(f"{file}: the added token {token.content!r} has id {token.id}, which leaves a gap")
    return backend


class _ListedToken(msgspec.Struct):
    id: int
    content: str


class _Listed(msgspec.Struct):
    """The part of tokenizer.json that says which ids its added tokens have."""

    added_tokens: list[_ListedToken] = []


def _text(value: Any, where: Path) -> str | None:
    """A special token: its text, or an object that holds it."""
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is not None and not isinstance(text, str):
        raise CheckpointError(f"{where}: {value!r} is not a token")
    return text


def _add_tokens(backend: Backend, config: Mapping[str, Any], specials: Iterable[str], where: Path) -> None:
    """The tokens that the configuration lists, in the order of their ids, and special ones it only names."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        tokens = [_added(entry) for _, entry in sorted(listed.items(), key=lambda item: int(item[0]))]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: added_tokens_decoder is not a list of tokens by id") from error
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    tokens = [token for token in tokens if repr(known.get(token.content)) != repr(token)]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(name) or []
        specials = [*specials, *(more.values() if isinstance(more, Mapping) else more)]
    contents = known.keys() | {token.content for token in tokens}
    texts = [text for token in specials if (text := _text(token, where)) is not None and text not in contents]
    tokens += [AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(texts)]
    for token in tokens:
        if token.special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])


def _added(entry: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
    return AddedToken(entry["content"], **flags)
