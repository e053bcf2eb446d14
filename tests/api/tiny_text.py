"""A tokenizer whose tokens are single bytes (id = byte + 3), chatml's three specials, and a chat template."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mlxserve.text.processor import TextProcessor
from mlxserve.text.template import ChatTemplate
from mlxserve.text.tokenizer import Tokenizer

FIRST_BYTE = 3
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ note }}"
)


def ids(text: str | bytes) -> tuple[int, ...]:
    """The tokens of a text."""
    return tuple(byte + FIRST_BYTE for byte in (text.encode() if isinstance(text, str) else text))


def text_of(tokens: tuple[int, ...]) -> bytes:
    return bytes(token - FIRST_BYTE for token in tokens)


def tiny_text(*, fim: bool = False, template: bool = True) -> TextProcessor:
    letters = _byte_letters()
    specials = SPECIALS + (FIM if fim else ())
    vocab = {special: number for number, special in enumerate(SPECIALS)}
    vocab |= {letters[byte]: byte + FIRST_BYTE for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(special, special=True) for special in specials])
    tokenizer = Tokenizer(backend, {"eos_token": SPECIALS[2]})
    return TextProcessor(tokenizer, ChatTemplate(TEMPLATE, tokenizer.special_tokens) if template else None)


def _byte_letters() -> dict[int, str]:
    """How byte-level tokenizers write each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
