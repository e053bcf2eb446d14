"""LOAD-07: tokenizers of directories in Hugging Face form, complete and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import TokenizerDirectory
from mlxserve.text.directory import build_tokenizer
from mlxserve.text.load import directory_templates, load_text
from mlxserve.text.tokenizer import Tokenizer
from tests.text import tiny
from tests.text.test_sentencepiece import trained

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    backend = Backend.from_str(tiny.byte_level().to_str())
    return tiny.write_directory(tmp_path, backend, special_tokens={"eos_token": "<|endoftext|>"})


def oracle(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def test_load_07_tokenizer_json_alone(path: Path) -> None:
    (path / "tokenizer_config.json").unlink()
    text = load_text(TokenizerDirectory(path))
    assert text.tokenizer.encode("hi the") == tiny.byte_level().encode("hi the").ids
    assert text.tokenizer.eos_token_ids == ()
    assert text.template is None


def test_load_07_tokenizer_model_alone(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe"))
    oracle = sentencepiece.SentencePieceProcessor(model_proto=trained("bpe"))
    tokenizer = build_tokenizer(tmp_path, [7])
    assert tokenizer.encode("the fox") == [1, *oracle.encode("the fox")]
    assert tokenizer.eos_token_ids == (2, 7)
    tiny.write_config(tmp_path, {"add_bos_token": False, "add_eos_token": True, "eos_token": {"content": "</s>"}})
    assert build_tokenizer(tmp_path).encode("the fox") == [*oracle.encode("the fox"), 2]


@pytest.mark.parametrize("legacy", [None, True, False])
def test_the_space_after_a_control_token(tmp_path: Path, legacy: bool | None) -> None:
    pytest.importorskip("sentencepiece")
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe"))
    tiny.write_config(tmp_path, {} if legacy is None else {"legacy": legacy})
    tokenizer = build_tokenizer(tmp_path)
    before, after = b"".join(map(tokenizer.token_bytes, tokenizer.encode("the</s>the"))).split(b"</s>")
    assert before == b"<s> the"
    assert after == (b"the" if legacy is False else b" the")


def test_load_07_neither(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        build_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_load_07_a_truncated_file_is_named(path: Path, name: str) -> None:
    file = path / name
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=rf"{name} is truncated"):
        load_text(TokenizerDirectory(path))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"model": {"type": "Nope"}}'])
def test_load_07_a_file_of_something_else_is_named(path: Path, content: bytes) -> None:
    (path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        build_tokenizer(path)


def test_load_07_an_added_token_beyond_the_others(path: Path) -> None:
    """The package would give it another id than the file does, without a word."""
    state = json.loads((path / "tokenizer.json").read_text())
    state["added_tokens"].append({**state["added_tokens"][-1], "id": 5000, "content": "<|beyond|>"})
    (path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=r"<\|beyond\|>.* 5000"):
        build_tokenizer(path)


def test_a_huge_file_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxserve.text.directory.MAX_BYTES", 10)
    with pytest.raises(CheckpointError, match="but may have 10"):
        build_tokenizer(path)


ADDED = {
    "0": {"content": "<|endoftext|>", "lstrip": False, "normalized": False, "rstrip": False, "special": True},
    "400": {"content": "<|new|>", "lstrip": False, "normalized": False, "rstrip": True, "special": True},
    "401": {"content": "<plain>", "lstrip": False, "normalized": False, "rstrip": False, "special": False},
}


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": ADDED},
        {"added_tokens_decoder": {"7": {"content": "'", "special": True}}},
        {"additional_special_tokens": ["<|a|>", "<|b|>"], "pad_token": "<|pad|>"},
        {"bos_token": {"__type": "AddedToken", "content": "<|endoftext|>"}, "add_bos_token": True},
        {"extra_special_tokens": {"image_token": "<|img|>"}},
        {"clean_up_tokenization_spaces": True, "model_max_length": 5},
    ],
)
def test_what_tokenizer_config_adds(path: Path, config: dict[str, Any]) -> None:
    """Tokens and ids as transformers gives them. tokenizer.json alone says whether BOS is added."""
    tiny.write_config(path, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", **config})
    tokenizer, want = build_tokenizer(path), oracle(path)
    for text in ("hi", "a <|new|>  b<plain>", "<|a|><|b|><|pad|><|img|>", "don't<|endoftext|>"):
        ids = tokenizer.encode(text)
        assert ids == want.encode(text)
        assert tokenizer.decode(ids) == want.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert tokenizer.vocab_size == len(want)


def test_truncation_and_padding_of_the_file_do_not_apply(path: Path) -> None:
    backend = Backend.from_file(str(path / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(path / "tokenizer.json"))
    assert len(build_tokenizer(path).encode("the quick brown fox")) not in (3, 50)


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {}}},
        {"added_tokens_decoder": {"1": {}}},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"1": {"content": 5}}},
        {"eos_token": 5},
        {"additional_special_tokens": [5]},
    ],
)
def test_a_config_that_makes_no_sense_is_named(path: Path, config: dict[str, Any]) -> None:
    tiny.write_config(path, config)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        build_tokenizer(path)


def test_roles_from_the_older_file(path: Path) -> None:
    tiny.write_config(path, {})
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    assert build_tokenizer(path).eos_token_ids == (0,)


@pytest.mark.parametrize("form", ["<|fim_{}|>", "<fim_{}>", "<fim-{}>"])
def test_fim_tokens(path: Path, form: str) -> None:
    names = [form.format(part) for part in ("suffix", "prefix", "middle")]
    backend = Backend.from_file(str(path / "tokenizer.json"))
    backend.add_special_tokens(names)
    assert Tokenizer(backend).fim_tokens == tuple(backend.token_to_id(names[i]) for i in (1, 0, 2))
    assert build_tokenizer(path).fim_tokens is None


# Where templates come from.


def test_templates_by_file(path: Path) -> None:
    """A file of its own takes the place of what tokenizer_config.json holds."""
    assert directory_templates(path) == {}
    tiny.write_config(path, {"chat_template": "config"})
    assert directory_templates(path) == {"default": "config"}
    (path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert directory_templates(path) == {"default": "json"}
    (path / "chat_template.jinja").write_text("jinja é", encoding="utf-8")
    assert directory_templates(path) == {"default": "jinja é"}
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert directory_templates(path) == {"default": "jinja é", "tool_use": "tools"}
    text = load_text(TokenizerDirectory(path))
    assert text.render_chat(HI) == "jinja é"
    assert text.render_chat(HI, tools=[{"type": "function"}]) == "tools"


def test_named_templates_of_the_config(path: Path) -> None:
    entries = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tiny.write_config(path, {"chat_template": entries})
    assert directory_templates(path) == {"default": "plain", "tool_use": "tools"}


@pytest.mark.parametrize("value", [5, [5], [{"name": "default"}], {"default": 5}, [{"template": "x"}]])
def test_a_template_that_is_none_is_named(path: Path, value: object) -> None:
    tiny.write_config(path, {"chat_template": value})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template"):
        load_text(TokenizerDirectory(path))


def test_a_template_file_that_cannot_be_read_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not UTF-8"):
        load_text(TokenizerDirectory(path))
    monkeypatch.setattr("mlxserve.text.load.MAX_TEMPLATE_BYTES", 0)
    with pytest.raises(CheckpointError, match="but may have 0"):
        load_text(TokenizerDirectory(path))
