"""Small GGUF files for the tests, written by the ``gguf`` package, and a hand-made header to break."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, LAYERS = 128, 4, 2, 96, 40, 2
HEAD_DIM = HIDDEN // HEADS
SHAPES = {
    "attn_norm": (HIDDEN,),
    "ffn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
METADATA = {
    "block_count": LAYERS,
    "context_length": 64,
    "embedding_length": HIDDEN,
    "feed_forward_length": FFN,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "rope.dimension_count": HEAD_DIM,
}


@dataclass(frozen=True)
class Written:
    path: Path
    raw: dict[str, np.ndarray]  # as quantised, by GGUF name
    kinds: dict[str, Kind]

    def values(self, name: str) -> np.ndarray:
        """The float32 values by the ``gguf`` package's own arithmetic."""
        return gguf.dequantize(self.raw[name], self.kinds[name])


def write_llama(
    path: Path,
    kind: Kind = Kind.Q4_1,
    *,
    architecture: str = "llama",
    extra: dict[str, np.ndarray] | None = None,
    without: str | None = None,
    tokens: int = VOCAB,
) -> Written:
    """A random two-layer model; matrices of ``kind``, norms float32, ``extra`` tensors as they are."""
    rng = np.random.default_rng(0)
    tensors = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{name}.weight": shape for name, shape in SHAPES.items()}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in METADATA.items():
        if key != without:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"t{i}" for i in range(tokens)])
    writer.add_token_types([1] * tokens)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(2)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 1)
    writer.add_chat_template("{{ messages }}")
    writer.add_float32("general.sampling.temp", 0.5)
    raw, kinds = {}, {}
    for name, shape in tensors.items():
        kinds[name] = kind if len(shape) > 1 else Kind.F32
        raw[name] = gguf.quantize(rng.standard_normal(shape).astype(np.float32), kinds[name])
        writer.add_tensor(name, raw[name], raw_dtype=kinds[name])
    for name, data in (extra or {}).items():
        raw[name], kinds[name] = data, Kind.F32
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Written(path, raw, kinds)


# Where a block's float16 numbers lie, and their ratio; the package writes no K-quants, so their blocks are drawn.
HALVES: dict[Kind, dict[int, float]] = {
    Kind.Q4_K: {0: 1.0, 2: 7.5},
    Kind.Q5_K: {0: 1.0, 2: 15.5},
    Kind.Q2_K: {80: 1.0, 82: 1.5},
    Kind.Q3_K: {108: 1.0},
    Kind.Q6_K: {208: 1.0},
}


def draw_blocks(kind: Kind, shape: tuple[int, ...], sigma: float, seed: int = 0) -> np.ndarray:
    """[..., bytes of a row]: weights of any type with about this deviation."""
    rng = np.random.default_rng(seed)
    if kind not in HALVES:
        return gguf.quantize(rng.normal(scale=sigma, size=shape).astype(np.float32), kind)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (np.prod(shape) // block, block_bytes), np.uint8)

    def scale(factor: float) -> None:
        for at, ratio in HALVES[kind].items():
            values = factor * ratio * np.linspace(0.8, 1.2, len(raw))[:, None]
            raw[:, at : at + 2] = values.astype(np.float16).view(np.uint8)

    scale(2.0**-6)
    scale(2.0**-6 * sigma / float(gguf.dequantize(raw, kind).std()))
    return raw.reshape(*shape[:-1], -1)


def string(text: str, length: int | None = None) -> bytes:
    """A GGUF string, which may lie about its length."""
    data = text.encode()
    return struct.pack("<Q", len(data) if length is None else length) + data


def tensor_entry(name: str = "t", dims: tuple[int, ...] = (32, 2), kind: int = 0, offset: int = 0) -> bytes:
    return (
        string(name)
        + struct.pack("<I", len(dims))
        + b"".join(struct.pack("<Q", dim) for dim in dims)
        + struct.pack("<IQ", kind, offset)
    )


def header(
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    tensor_count: int | None = None,
    key_count: int | None = None,
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = bytes(256),
) -> bytes:
    """A whole file; counts default to the truth."""
    counts = struct.pack(
        "<QQ",
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = magic + version + counts + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(name: str, kind: int, count: int, value: bytes = b"") -> bytes:
    return key(name, 9, struct.pack("<IQ", kind, count) + value)
