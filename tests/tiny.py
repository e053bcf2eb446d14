"""Tiny random models in Hugging Face form, for tests.

Weights are drawn so that attention is not flat: with a sigma of 2 / sqrt(fan in) and norms near 1, doubling the base of
RoPE moves the logits by more than 1; with the usual small sigma by less than any tolerance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mlxserve.errors import CheckpointError
from mlxserve.formats.tensors import DenseTensor, HostTensor

Arrays = dict[str, NDArray[np.float32]]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 288,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def make_llama(directory: Path, seed: int = 0, **over: Any) -> Path:
    """A llama with its tokenizer and chat template; ``over`` are keys of config.json, None removes one."""
    config = {k: v for k, v in {**LLAMA, **over}.items() if v is not None}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(llama_weights(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"eos_token_id": 2})
    make_tokenizer(directory)
    return directory


def llama_weights(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Every tensor of a llama, by its Hugging Face name."""
    hidden, inter, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        rows = {"q": (heads * width, hidden), "k": (kv_heads * width, hidden), "v": (kv_heads * width, hidden)}
        for name, shape in {**rows, "o": (hidden, heads * width)}.items():
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = shape
            if config.get("attention_bias"):
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = shape[:1]
        for name, shape in {"gate": (inter, hidden), "up": (inter, hidden), "down": (hidden, inter)}.items():
            shapes[f"{layer}.mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                shapes[f"{layer}.mlp.{name}_proj.bias"] = shape[:1]
        shapes[f"{layer}.input_layernorm.weight"] = shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return draw(shapes, seed)


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int = 0, norm_mean: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)

    def tensor(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) > 1:
            values = rng.normal(scale=2 / math.sqrt(shape[-1]), size=shape)
        elif "norm" in name:
            values = norm_mean + 0.1 * rng.normal(size=shape)
        else:
            values = 0.3 * rng.normal(size=shape)
        return values.astype(np.float32)

    return {name: tensor(name, shape) for name, shape in shapes.items()}


def make_tokenizer(directory: Path) -> None:
    """One token a byte, after the three special ones of ChatML; ids below 259."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate([*SPECIALS, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[2],
            "chat_template": CHATML,
        },
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


class MemorySource:
    """A TensorSource of arrays or host tensors."""

    quantization = "none"

    def __init__(self, tensors: Mapping[str, NDArray[np.float32] | HostTensor]) -> None:
        self.tensors = {
            name: DenseTensor(t, "float32") if isinstance(t, np.ndarray) else t for name, t in tensors.items()
        }

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def read(self, name: str) -> HostTensor:
        if name not in self.tensors:
            raise CheckpointError(f"no tensor {name}")
        return self.tensors[name]


class MemoryCheckpoint:
    """What ``load_model`` needs, without files."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32] | HostTensor] | None = None
    ) -> None:
        self.config = dict(config)
        self.source = MemorySource(llama_weights(config) if tensors is None else tensors)
