from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlxserve.convert import quantize_checkpoint
from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.checkpoint import TokenizerDirectory, open_checkpoint
from mlxserve.formats.quantize import quantized
from mlxserve.formats.tensors import AffineTensor
from mlxserve.text.load import load_text
from tests.models.harness import Model, difference
from tests.tiny import make_llama

PROMPT = [[5, 77, 130, 9, 4, 250, 61, 12]]


def test_a_directory_is_quantised_and_serves_the_same(tmp_path: Path) -> None:
    """What was written equals what quantising at load gives, up to the 16 bits of its norms."""
    path = make_llama(tmp_path / "llama", auto_map={"AutoModel": "evil.Model"}, model_file="evil.py")
    (path / "evil.py").write_text("boom")
    checkpoint = open_checkpoint(str(path))
    seen: list[tuple[int, int]] = []
    quantize_checkpoint(checkpoint, tmp_path / "deep" / "out", 4, 32, lambda done, total: seen.append((done, total)))
    written = open_checkpoint(str(tmp_path / "deep" / "out"))
    assert seen[-1] == (len(checkpoint.source.names()),) * 2
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]
    assert not (tmp_path / "deep" / "out" / "evil.py").exists()
    assert not {"auto_map", "model_file"} & written.config.keys()
    assert written.source.quantization == "int4"
    assert written.eos_token_ids == checkpoint.eos_token_ids
    assert written.config["quantization"]["model.embed_tokens"] == {"bits": 8, "group_size": 32}
    assert isinstance(written.tokenizer, TokenizerDirectory)
    text, original = (load_text(c.tokenizer, c.eos_token_ids) for c in (written, checkpoint))
    assert text.tokenizer.encode("Hello") == original.tokenizer.encode("Hello")
    at_load = Model(quantized(checkpoint, 4, 32), "torch").logits(PROMPT, "prefill")
    assert difference(Model(written, "torch").logits(PROMPT, "prefill"), at_load) < 6e-3
    exact = Model(checkpoint, "torch").logits(PROMPT, "prefill")
    assert difference(at_load, exact) > 2e-2  # the control: quantising is seen


def test_mlx_lm_loads_it_and_computes_the_same(tmp_path: Path) -> None:
    mx, mlx_lm = pytest.importorskip("mlx.core"), pytest.importorskip("mlx_lm")
    quantize_checkpoint(open_checkpoint(str(make_llama(tmp_path / "llama"))), tmp_path / "out", 4, 32)
    model, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    assert tokenizer.encode("Hello") == load_text(TokenizerDirectory(tmp_path / "out")).tokenizer.encode("Hello")
    theirs = np.array(model(mx.array(PROMPT)).astype(mx.float32))[0]
    ours = Model(open_checkpoint(str(tmp_path / "out")), "torch").logits(PROMPT, "prefill")
    assert difference(ours, [theirs]) < 2e-2  # they compute in float16


def test_the_embedded_model_in_the_form_of_mlx(tmp_path: Path) -> None:
    """Groups of 32 of the Q4_1 file are exact; the tokenizer and the chat template come from its metadata."""
    mx, mlx_lm = pytest.importorskip("mlx.core"), pytest.importorskip("mlx_lm")
    checkpoint = open_checkpoint("smollm2-135m")
    quantize_checkpoint(checkpoint, tmp_path / "out", 4, 32)
    written = open_checkpoint(str(tmp_path / "out"))
    for name in ("model.embed_tokens.weight", "model.layers.3.self_attn.k_proj.weight"):
        tensor = written.source.read(name)
        assert isinstance(tensor, AffineTensor)
        np.testing.assert_array_equal(dequantize(tensor), dequantize(checkpoint.source.read(name)))
    assert written.eos_token_ids == (2,)
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    ours, original = (load_text(c.tokenizer, c.eos_token_ids) for c in (written, checkpoint))
    text = "Prices: 1 234,50 € — naïve 日本 <|im_end|>\n\n  def f(x):"
    assert ours.tokenizer.encode(text) == original.tokenizer.encode(text)
    model, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    assert tokenizer.encode(text) == original.tokenizer.encode(text)
    rendered = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)
    assert tokenizer.decode(rendered).endswith("What is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    model.set_dtype(mx.float32)  # MLX emulates float16 on a CPU
    logits = model(mx.array([tokenizer.encode("The capital of France is")]))
    assert tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"


def test_an_existing_place_is_not_touched(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(make_llama(tmp_path / "llama")))
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="out exists already"):
        quantize_checkpoint(checkpoint, tmp_path / "out", 4, 32)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        quantize_checkpoint(checkpoint, tmp_path / "file" / "out", 4, 32)
    with pytest.raises(CheckpointError, match="group size is 128"):
        quantize_checkpoint(checkpoint, tmp_path / "new", 4, 128)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.part").exists()


def test_named_templates_and_sampling_are_kept(tmp_path: Path) -> None:
    path = make_llama(tmp_path / "llama")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "eos_token_id": [2, 1]}))
    quantize_checkpoint(open_checkpoint(str(path)), tmp_path / "out", 8, 32)
    written = open_checkpoint(str(tmp_path / "out"))
    assert written.generation_config["temperature"] == 0.25
    assert written.eos_token_ids == (1, 2)
    assert (tmp_path / "out" / "additional_chat_templates" / "tools.jinja").read_text() == "{{ tools }}"
