"""RoPE as GGUF says it, in config.json's words.

Knows the keys ``rope.*`` and the tensors that hold factors; what the words mean is for ``models/``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.gguf import GGUFFile
from mlxserve.formats.gguf_blocks import check_type, decode

LLAMA3_DIVISORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (LLAMA3_DIVISORS, LONG, SHORT)  # tensors that are read here
# Refinements of YaRN that transformers has no words for, and their values when they change nothing.
_YARN_EXTRAS = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "attn_factor": 1.0, "yarn_log_multiplier": 0.0}


def rope_scaling(file: GGUFFile, prefix: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The object at ``rope_scaling``; None for plain RoPE. A factor without a type is linear.

    Raises CheckpointError naming a kind that is not supported.
    """
    factor = file.number(f"{prefix}.rope.scaling.factor")
    if factor is None:
        factor = file.number(f"{prefix}.rope.scale_linear")  # the key's older name
    kind = file.string(f"{prefix}.rope.scaling.type") or ("none" if factor in (None, 0.0, 1.0) else "linear")
    present = [name for name in FACTORS if name in file.tensors]
    if present == [LLAMA3_DIVISORS] and kind == "none":
        return _llama3(file, config)
    if present == [LONG, SHORT] and kind in ("none", "longrope"):
        return _longrope(file, prefix)
    if present:
        raise CheckpointError(
            f"{file.path}: {' and '.join(present)} together with RoPE scaling {kind!r} is not supported"
        )
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return None
    if kind == "linear" and factor is not None and 0 < factor < math.inf:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and factor is not None and 0 < factor < math.inf:
        return _yarn(file, prefix, factor)
    raise CheckpointError(f"{file.path}: the RoPE scaling {kind!r} (factor {factor}) is not supported in GGUF form")


def partial_rotary_factor(file: GGUFFile, prefix: str, head_dim: int) -> float | None:
    """The share of a head that is rotated; None for all of it."""
    rotated = file.positive_integer(f"{prefix}.rope.dimension_count", head_dim)
    if rotated == head_dim:
        return None
    if rotated > head_dim:
        raise CheckpointError(f"{file.path}: {rotated} of {head_dim} rotary dimensions are not supported")
    return math.nextafter(rotated / head_dim, 1)  # so that head_dim times it, cut to a whole number, is ``rotated``


def _yarn(file: GGUFFile, prefix: str, factor: float) -> dict[str, Any]:
    section = f"{prefix}.rope.scaling"
    for key, neutral in _YARN_EXTRAS.items():
        value = file.number(f"{section}.{key}")
        if value is not None and value != neutral:
            raise CheckpointError(f"{file.path}: {section}.{key} is {value}, but only {neutral} is supported")
    out: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    out["original_max_position_embeddings"] = file.positive_integer(f"{section}.original_context_length")
    for key in ("beta_fast", "beta_slow"):
        value = file.number(f"{section}.yarn_{key}")
        if value is not None:
            out[key] = value
    return out


def _longrope(file: GGUFFile, prefix: str) -> dict[str, Any]:
    """Phi-3's and Phi-4-mini's. The converter writes the attention factor that it has computed from the lengths."""
    out: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": _values(file, LONG).tolist(),
        "short_factor": _values(file, SHORT).tolist(),
        "original_max_position_embeddings": file.positive_integer(f"{prefix}.rope.scaling.original_context_length"),
    }
    attention = file.number(f"{prefix}.rope.scaling.attn_factor")
    if attention is not None:
        out["attention_factor"] = attention
    return out


def _llama3(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Llama 3's scaling, which GGUF stores as one divisor a frequency, back as its parameters.

    Only the released parameters (low 1, high 4, original length 8192) are recognised, by recomputing the divisors.
    """
    divisors = _values(file, LLAMA3_DIVISORS)
    low, high, original, factor = 1.0, 4.0, 8192, float(divisors.max())
    half = config["head_dim"] // 2
    known = divisors.shape == (half,) and bool(np.isfinite(divisors).all()) and float(divisors.min()) >= 1
    if known:
        wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(half) / half)
        smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
        known = np.allclose(divisors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4)
    if not known:
        raise CheckpointError(
            f"{file.path}: the frequencies in {LLAMA3_DIVISORS!r} are not those of a known RoPE scaling"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _values(file: GGUFFile, name: str) -> NDArray[np.float64]:
    info = file.tensors[name]
    check_type(info)
    return dequantize(decode(file.raw(info), info)).astype(np.float64)
