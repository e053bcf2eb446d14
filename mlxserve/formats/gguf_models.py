"""GGUF architectures: metadata to a config in Hugging Face's form, tensor names to Hugging Face's.

One row of ``ARCHITECTURES`` each. Knows the header and the blocks of a file; what a config means is for ``models/``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.gguf import GGUFFile
from mlxserve.formats.gguf_blocks import check_type, decode, outline
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor


@dataclass(frozen=True, slots=True)
class Architecture:
    """Names without and within a layer (GGUF's to Hugging Face's), and config keys beyond the common ones.

    ``permuted``: per-layer names whose rows the converter moved from Hugging Face's half-split RoPE order to the
    interleaved one, and whether they have the query's or the key's number of heads.
    """

    model_type: str
    outer: Mapping[str, str]
    inner: Mapping[str, str]
    permuted: Mapping[str, str]


_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        model_type="llama",
        outer=_OUTER,
        inner=_ATTENTION | _MLP,
        permuted={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
    ),
}

ROPE_FACTORS = "rope_freqs.weight"


def architecture(file: GGUFFile) -> Architecture:
    """Raises CheckpointError naming the architecture if it has no row here."""
    name = file.string("general.architecture")
    if name is None or name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{file.path}: the GGUF architecture {name!r} is not supported; supported are {known}")
    return ARCHITECTURES[name]


def config(file: GGUFFile) -> dict[str, Any]:
    """The model's config.json as Hugging Face would write it. Raises CheckpointError naming a missing key."""
    row = architecture(file)
    prefix = file.string("general.architecture")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: the tensor 'token_embd.weight' is missing or not a matrix")
    if (file.integer(f"{prefix}.expert_count") or 0) > 0:
        raise CheckpointError(f"{file.path}: mixtures of experts in GGUF form are not supported")
    hidden = file.positive_integer(f"{prefix}.embedding_length")
    heads = file.positive_integer(f"{prefix}.attention.head_count")
    out: dict[str, Any] = {
        "model_type": row.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": file.positive_integer(f"{prefix}.block_count"),
        "intermediate_size": file.positive_integer(f"{prefix}.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.positive_integer(f"{prefix}.attention.head_count_kv", heads),
        "head_dim": file.positive_integer(f"{prefix}.attention.key_length", max(1, hidden // heads)),
        "max_position_embeddings": file.positive_integer(f"{prefix}.context_length"),
        "rms_norm_eps": _positive(file, f"{prefix}.attention.layer_norm_rms_epsilon", None),
        "rope_theta": _positive(file, f"{prefix}.rope.freq_base", 10000.0),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }
    rotated = file.integer(f"{prefix}.rope.dimension_count")
    if rotated is not None and rotated != out["head_dim"]:
        raise CheckpointError(f"{file.path}: {rotated} of {out['head_dim']} rotary dimensions are not supported")
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        if f"blk.0.{name}.bias" in file.tensors:
            out["attention_bias"] = True
    scaling = _rope_scaling(file, prefix or "", out)
    if scaling:
        out["rope_scaling"] = scaling
    return out


def _positive(file: GGUFFile, key: str, default: float | None) -> float:
    value = file.number(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise CheckpointError(f"{file.path}: the GGUF metadata lacks {key}")
    if not 0 < value < math.inf:
        raise CheckpointError(f"{file.path}: {key} is {value}, but must be above 0 and finite")
    return value


def _rope_scaling(file: GGUFFile, prefix: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = file.string(f"{prefix}.rope.scaling.type") or "none"
    factor = file.number(f"{prefix}.rope.scaling.factor")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise CheckpointError(f"{file.path}: {ROPE_FACTORS} together with RoPE scaling {kind!r} is not supported")
        return _llama3_scaling(file, config)
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return None
    if kind == "linear" and factor is not None and 0 < factor < math.inf:
        return {"rope_type": "linear", "factor": factor}
    raise CheckpointError(f"{file.path}: the RoPE scaling {kind!r} (factor {factor}) is not supported in GGUF form")


def _llama3_scaling(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama 3's scaling, which GGUF stores as one divisor a frequency, back as its parameters.

    Only the released parameters (low 1, high 4, original length 8192) are recognised, by recomputing the divisors.
    """
    info = file.tensors[ROPE_FACTORS]
    check_type(info)
    divisors = dequantize(decode(file.raw(info), info)).astype(np.float64)
    low, high, original, factor = 1.0, 4.0, 8192, float(divisors.max())
    half = config["head_dim"] // 2
    known = divisors.shape == (half,) and bool(np.isfinite(divisors).all()) and float(divisors.min()) >= 1
    if known:
        wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(half) / half)
        smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
        known = np.allclose(divisors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4)
    if not known:
        raise CheckpointError(f"{file.path}: the frequencies in {ROPE_FACTORS!r} are not those of a known RoPE scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


@dataclass(frozen=True, slots=True)
class _Entry:
    gguf_name: str
    heads: int | None  # number of heads whose rows are to be un-permuted


class GGUFSource:
    """A ``TensorSource`` over a GGUF file. Raises CheckpointError at once for a tensor it could not read."""

    def __init__(self, file: GGUFFile, config: Mapping[str, Any]) -> None:
        self._file = file
        self._entries = _entries(file, architecture(file), config)
        weights: Counter[str] = Counter()
        for entry in self._entries.values():
            info = file.tensors[entry.gguf_name]
            check_type(info)
            if len(info.shape) > 1:
                weights[info.type.name.lower()] += info.nbytes
        self._kinds = weights

    @property
    def quantization(self) -> str:
        kind = self._kinds.most_common(1)[0][0] if self._kinds else "none"
        return kind if kind.startswith("q") else "none"

    def names(self) -> Collection[str]:
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._entry(name).gguf_name].shape

    def outline(self, name: str) -> HostTensor:
        return outline(self._file.tensors[self._entry(name).gguf_name])

    def read(self, name: str) -> HostTensor:
        entry = self._entry(name)
        info = self._file.tensors[entry.gguf_name]
        try:
            tensor = decode(self._file.raw(info), info)
        except CheckpointError as error:
            raise CheckpointError(f"{self._file.path}: {error.message}") from error
        return tensor if entry.heads is None else _take_rows(tensor, _unpermuted(info.shape[0], entry.heads))

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise CheckpointError(f"{self._file.path}: the tensor {name!r} is missing")
        return self._entries[name]


def _entries(file: GGUFFile, row: Architecture, config: Mapping[str, Any]) -> dict[str, _Entry]:
    """Every tensor of the file by its Hugging Face name; one without a counterpart keeps its own."""
    out = {}
    for name, info in file.tensors.items():
        if name == ROPE_FACTORS:
            continue
        stem, _, kind = name.rpartition(".")
        heads = None
        if stem.startswith("blk.") and stem.count(".") == 2:
            _, layer, part = stem.split(".")
            target = f"model.layers.{layer}.{row.inner[part]}" if part in row.inner else stem
            if part in row.permuted:
                heads = int(config[row.permuted[part]])
                if info.shape[0] % (2 * heads):
                    raise CheckpointError(
                        f"{file.path}: the tensor {name!r} has {info.shape[0]} rows, "
                        f"which do not divide into {heads} heads of even width"
                    )
        else:
            target = row.outer.get(stem, stem)
        if f"{target}.{kind}" in out:
            raise CheckpointError(f"{file.path}: two tensors stand for {target}.{kind}, one of them {name!r}")
        out[f"{target}.{kind}"] = _Entry(name, heads)
    return out


def _unpermuted(rows: int, heads: int) -> NDArray[np.intp]:
    """Where each row in Hugging Face's order lies in a file whose heads interleave the two halves of RoPE."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _take_rows(tensor: HostTensor, rows: NDArray[np.intp]) -> HostTensor:
    if isinstance(tensor, DenseTensor):
        return replace(tensor, data=tensor.data[rows])
    assert isinstance(tensor, AffineTensor)
    return replace(
        tensor,
        packed=tensor.packed[rows],
        scales=replace(tensor.scales, data=tensor.scales.data[rows]),
        biases=replace(tensor.biases, data=tensor.biases.data[rows]),
    )
