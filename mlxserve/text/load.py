"""Builds a model's text side from the files of its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import TokenizerFiles
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from mlxserve.formats.jsonfile import read_json_if_present
from mlxserve.text import directory, gguf_tokenizer
from mlxserve.text.processor import TextProcessor
from mlxserve.text.template import ChatTemplate

MAX_TEMPLATE_BYTES = 2**22


def load_text(files: TokenizerFiles, eos_token_ids: Iterable[int] = ()) -> TextProcessor:
    """``eos_token_ids``: those that the checkpoint names outside its tokenizer.

    Raises CheckpointError naming the file that is missing, damaged or not supported.
    """
    if isinstance(files, GGUFTokenizer):
        tokenizer = gguf_tokenizer.build_tokenizer(files, eos_token_ids)
        templates: dict[str, str] = dict(files.named_templates)
        if files.chat_template is not None:
            templates["default"] = files.chat_template
    else:
        tokenizer = directory.build_tokenizer(files.path, eos_token_ids)
        templates = directory_templates(files.path)
    return TextProcessor(tokenizer, ChatTemplate(templates, tokenizer.special_tokens) if templates else None)


def directory_templates(path: Path) -> dict[str, str]:
    """By name. Files of their own take the place of what tokenizer_config.json says, as transformers has it."""
    templates = {file.stem: _read(file) for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    if (path / "chat_template.jinja").is_file():
        templates["default"] = _read(path / "chat_template.jinja")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not templates:
            templates = _entry(read_json_if_present(path / name).get("chat_template"), path / name)
    return templates


def _entry(value: Any, where: Path) -> dict[str, str]:
    """One template, or a list of named ones."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    out = {}
    for entry in value if isinstance(value, list) else [None]:
        name, template = (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(template, str):
            raise CheckpointError(f"{where}: chat_template is neither a string nor a list of named templates")
        out[name] = template
    return out


def _read(file: Path) -> str:
    try:
        if (size := file.stat().st_size) > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"{file} has {size} bytes, but may have {MAX_TEMPLATE_BYTES}")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not UTF-8 text") from error
