"""Builds the tokenizer that a GGUF file describes. Knows the file's vocabulary, not the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mlxserve.errors import CheckpointError
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from mlxserve.text.sentencepiece import Piece, PieceType, Rules, build_backend
from mlxserve.text.tokenizer import Tokenizer, add_at_ends

# Tokens that end a turn under any chat template; old files name only one that ends a document.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")

_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

# The patterns that the models' own tokenizer.json files split text by.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def build_tokenizer(gguf: GGUFTokenizer, eos_token_ids: Iterable[int] = ()) -> Tokenizer:
    """Raises CheckpointError for a kind of vocabulary or a pre-tokeniser that is not supported, naming it."""
    if gguf.model == "gpt2":
        backend = _byte_level(gguf)
    elif gguf.model == "llama":
        backend = _sentencepiece(gguf)
    else:
        raise CheckpointError(f"tokenizer.ggml.model is {gguf.model!r}; 'gpt2' and 'llama' are supported")
    added = [AddedToken(t, special=True, normalized=False) for t in _of_type(gguf, PieceType.CONTROL)]
    roles = {role: gguf.tokens[gguf.special_ids[name]] for name, role in _ROLES.items() if name in gguf.special_ids}
    added += [AddedToken(t, special=True, normalized=False) for name, t in roles.items() if name != "unk_token"]
    backend.add_special_tokens(added)
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in _of_type(gguf, PieceType.USER_DEFINED)])
    _add_bos_and_eos(backend, gguf, roles)
    turn_ends = {gguf.tokens.index(t) for t in _of_type(gguf, PieceType.CONTROL) if t in _TURN_ENDS}
    return Tokenizer(backend, roles, {*eos_token_ids, *gguf.end_ids, *turn_ends})


def _of_type(gguf: GGUFTokenizer, wanted: int) -> list[str]:
    types = [] if gguf.token_types is None else gguf.token_types.tolist()
    return [gguf.tokens[index] for index, kind in enumerate(types) if kind == wanted]


def _byte_level(gguf: GGUFTokenizer) -> Backend:
    if gguf.pre not in PRE_TOKENIZERS:
        supported = ", ".join(map(str, PRE_TOKENIZERS))
        raise CheckpointError(f"tokenizer.ggml.pre is {gguf.pre!r}, which is not supported; supported are {supported}")
    if gguf.merges is None:
        raise CheckpointError("the GGUF metadata has no tokenizer.ggml.merges, which a 'gpt2' vocabulary needs")
    vocab = {token: index for index, token in enumerate(gguf.tokens)}
    merges = []
    for merge in gguf.merges:
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise CheckpointError(f"tokenizer.ggml.merges holds {merge!r}, which are not two tokens that make a third")
        merges.append((left, right))
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=gguf.pre in _WHOLE_WORDS_FIRST))
    backend.normalizer = normalizers.NFC() if gguf.pre == "qwen2" else None
    backend.pre_tokenizer = PRE_TOKENIZERS[gguf.pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _split_by(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


PRE_TOKENIZERS: Mapping[str | None, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "llama-bpe": _split_by(_LLAMA3),
    "llama3": _split_by(_LLAMA3),
    "dbrx": _split_by(_LLAMA3),  # OLMo 2; unlike Llama 3 it merges within a word that is a token
    "qwen2": _split_by(_QWEN2),
    "deepseek-r1-qwen": _split_by(_QWEN2),
    "refact": _single_digits,  # Granite 3
    "smollm": _single_digits,
}
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3")  # a word that is a token is taken whole, whatever the merges


def _sentencepiece(gguf: GGUFTokenizer) -> Backend:
    if gguf.scores is None or gguf.token_types is None:
        raise CheckpointError("the GGUF metadata lacks tokenizer.ggml.scores or .token_type, which 'llama' needs")
    pieces = [Piece(*entry) for entry in zip(gguf.tokens, gguf.scores.tolist(), gguf.token_types.tolist(), strict=True)]
    spaced = tuple(piece.text for piece in pieces if piece.type == PieceType.USER_DEFINED and "▁" in piece.text)
    return build_backend(pieces, Rules(dummy_prefix=gguf.add_space_prefix is not False, whole=spaced))


def _add_bos_and_eos(backend: Backend, gguf: GGUFTokenizer, roles: dict[str, str]) -> None:
    """What the file does not say is as llama.cpp has it: BOS for SentencePiece and Llama 3, EOS for none."""
    add_bos = gguf.add_bos if gguf.add_bos is not None else gguf.model == "llama" or gguf.pre in _WHOLE_WORDS_FIRST
    add_at_ends(backend, roles.get("bos_token") if add_bos else None, roles.get("eos_token") if gguf.add_eos else None)
