from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.gguf_tokenizer import GGUFTokenizer
from tests.formats.gguf_files import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, Kind, write_llama

KINDS = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1)


def half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """The plain reference: row 2i of a head in the file is its row i, row 2i + 1 its row i + head_dim / 2."""
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(HEAD_DIM // 2):
            base = head * HEAD_DIM
            out[base + i] = rows[base + 2 * i]
            out[base + i + HEAD_DIM // 2] = rows[base + 2 * i + 1]
    return out


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_tensor_under_its_hugging_face_name(kind: Kind, tmp_path: Path) -> None:
    """NUM-09: the query's and the key's rows are un-permuted, with fewer key heads too; all else is as stored."""
    written = write_llama(tmp_path / "m.gguf", kind)
    checkpoint = open_checkpoint(str(written.path))
    source = checkpoint.source
    expected = {
        "model.embed_tokens.weight": written.values("token_embd.weight"),
        "model.norm.weight": written.values("output_norm.weight"),
    }
    for layer in range(LAYERS):
        here, there = f"model.layers.{layer}", f"blk.{layer}"
        expected |= {
            f"{here}.input_layernorm.weight": written.values(f"{there}.attn_norm.weight"),
            f"{here}.post_attention_layernorm.weight": written.values(f"{there}.ffn_norm.weight"),
            f"{here}.self_attn.q_proj.weight": half_split(written.values(f"{there}.attn_q.weight"), HEADS),
            f"{here}.self_attn.k_proj.weight": half_split(written.values(f"{there}.attn_k.weight"), KV_HEADS),
            f"{here}.self_attn.v_proj.weight": written.values(f"{there}.attn_v.weight"),
            f"{here}.self_attn.o_proj.weight": written.values(f"{there}.attn_output.weight"),
            f"{here}.mlp.gate_proj.weight": written.values(f"{there}.ffn_gate.weight"),
            f"{here}.mlp.up_proj.weight": written.values(f"{there}.ffn_up.weight"),
            f"{here}.mlp.down_proj.weight": written.values(f"{there}.ffn_down.weight"),
        }
    assert set(source.names()) == set(expected)
    for name, values in expected.items():
        assert source.shape(name) == values.shape
        assert source.read(name).shape == values.shape
        np.testing.assert_array_equal(dequantize(source.read(name)), values)
    assert source.quantization == (kind.name.lower() if kind.name.startswith("Q") else "none")
    stored = written.values("blk.0.attn_q.weight")
    assert not np.array_equal(expected["model.layers.0.self_attn.q_proj.weight"], stored)  # the control


def test_config_and_what_else_the_file_says(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_llama(tmp_path / "tiny-model.gguf").path))
    assert checkpoint.config == {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 64,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }
    assert (checkpoint.name, checkpoint.eos_token_ids) == ("tiny-model", (1, 2))
    assert checkpoint.generation_config == {"temperature": 0.5}
    tokenizer = checkpoint.tokenizer
    assert isinstance(tokenizer, GGUFTokenizer)
    assert (tokenizer.model, tokenizer.pre, tokenizer.merges) == ("gpt2", "smollm", ("t 1",))
    assert tokenizer.tokens == tuple(f"t{i}" for i in range(VOCAB))
    assert tokenizer.special_ids == {"eos": 2, "eot": 1}
    assert (tokenizer.chat_template, tokenizer.add_bos) == ("{{ messages }}", None)


def test_an_untied_head_and_an_unknown_tensor_are_listed(tmp_path: Path) -> None:
    """NUM-07: what the architecture has no name for keeps its own, so that the loader can name it."""
    extra = {
        "output.weight": np.ones((VOCAB, HIDDEN), np.float32),
        "blk.0.attn_sinks.weight": np.ones(HEADS, np.float32),
        "blk.1.attn_q.bias": np.arange(HIDDEN, dtype=np.float32),
    }
    checkpoint = open_checkpoint(str(write_llama(tmp_path / "m.gguf", extra=extra).path))
    assert checkpoint.config["tie_word_embeddings"] is False
    names = set(checkpoint.source.names())
    assert {"lm_head.weight", "blk.0.attn_sinks.weight", "model.layers.1.self_attn.q_proj.bias"} <= names
    bias = dequantize(checkpoint.source.read("model.layers.1.self_attn.q_proj.bias"))
    np.testing.assert_array_equal(bias, half_split(extra["blk.1.attn_q.bias"], HEADS))
    with pytest.raises(CheckpointError, match=r"'model\.layers\.9\.mlp' is missing"):
        checkpoint.source.read("model.layers.9.mlp")
    with pytest.raises(CheckpointError, match="is missing"):
        checkpoint.source.shape("output.weight")


def llama3_divisors(factor: float) -> np.ndarray:
    """As transformers computes them: inverse frequencies before and after the scaling."""
    frequencies = 1 / 10000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    out = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            out.append(1.0)
        elif wavelength > 8192 / 1:
            out.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def test_llama3_scaling_is_recognised_from_its_divisors(tmp_path: Path) -> None:
    """NUM-03."""
    extra = {"rope_freqs.weight": llama3_divisors(32.0)}
    checkpoint = open_checkpoint(str(write_llama(tmp_path / "m.gguf", extra=extra).path))
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in checkpoint.source.names()


@pytest.mark.parametrize(
    "divisors",
    [
        np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32),
        np.zeros(HEAD_DIM // 2, np.float32),
        np.full(HEAD_DIM // 2, np.nan, np.float32),
        np.ones(3, np.float32),
    ],
)
def test_other_divisors_are_refused(divisors: np.ndarray, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", extra={"rope_freqs.weight": divisors}).path
    with pytest.raises(CheckpointError, match="not those of a known RoPE scaling"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    "missing", ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"]
)
def test_a_missing_key_is_named(missing: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", without=missing).path
    with pytest.raises(CheckpointError, match=f"lacks llama.{missing}"):
        open_checkpoint(str(path))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", architecture="mamba").path
    with pytest.raises(CheckpointError, match="architecture 'mamba' is not supported"):
        open_checkpoint(str(path))


def test_a_special_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", tokens=2).path
    with pytest.raises(CheckpointError, match=r"eos_token_id is 2, but token ids are from 0 to 1"):
        open_checkpoint(str(path))


def test_two_tensors_for_one_name_are_refused(tmp_path: Path) -> None:
    extra = {"model.norm.weight": np.ones(HIDDEN, np.float32)}
    path = write_llama(tmp_path / "m.gguf", extra=extra).path
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        open_checkpoint(str(path))
