"""Eight styles of chat template, each with a tiny tokenizer that has its control tokens, as a model directory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from mlxserve.formats.checkpoint import TokenizerDirectory
from mlxserve.text.load import load_text
from mlxserve.text.processor import TextProcessor
from tests.text import tiny

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Style:
    tokenizer: Callable[[], Tokenizer]
    special_tokens: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)


def _phi() -> Tokenizer:
    """Its control tokens swallow the white space after them."""
    tokenizer = tiny.byte_fallback(("<unk>", "<s>", "</s>"), bos="<s>")
    copy = Tokenizer.from_str(tokenizer.to_str())
    names = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    copy.add_special_tokens([AddedToken(name, rstrip=True, normalized=False, special=True) for name in names])
    return copy


_MISTRAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
_GEMMA = ("<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
_GRANITE = ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>")
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

STYLES: dict[str, Style] = {
    "chatml": Style(lambda: tiny.byte_level(_CHATML), {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
    "llama3": Style(
        lambda: tiny.byte_level(_LLAMA3, bos="<|begin_of_text|>"),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "mistral": Style(
        lambda: tiny.byte_fallback((*_MISTRAL, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"), bos="<s>"),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "gemma": Style(
        lambda: tiny.byte_fallback(_GEMMA, False, "never", bos="<bos>"),
        {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"},
    ),
    "phi": Style(_phi, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "granite": Style(lambda: tiny.byte_level(_GRANITE), {"eos_token": "<|end_of_text|>"}),
    "smollm3": Style(lambda: tiny.byte_level(_CHATML, _QWEN[:2]), {"eos_token": "<|im_end|>"}),
    "qwen3": Style(lambda: tiny.byte_level(_CHATML, _QWEN), {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
}


@cache
def directory(name: str, parent: Path) -> Path:
    style = STYLES[name]
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return tiny.write_directory(
        parent / name, style.tokenizer(), special_tokens=style.special_tokens, template=template, config=style.config
    )


@cache
def processor(name: str, parent: Path) -> TextProcessor:
    return load_text(TokenizerDirectory(directory(name, parent)))


@cache
def oracle(name: str, parent: Path) -> Any:
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the oracle's own deprecations are not ours
        return AutoTokenizer.from_pretrained(directory(name, parent))
