"""Every kind of rotary embedding reduced to inverse frequencies and one factor, fixed when the model is loaded.

Knows config.json's rope keys, old (``rope_theta``, ``rope_scaling``) and new (``rope_parameters``); knows no arrays.
Some kinds depend on the length of the text. A KV cache needs one set of frequencies for a sequence's whole life, so
the length that the model is served with decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mlxserve.models.config import Config
from mlxserve.models.spec import Rope

DEFAULT_BASE = 10000.0


def rope_section(config: Config, layer_type: str | None = None) -> Config:
    """The object that describes RoPE, ``layer_type``'s own where the config has one for each type of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        if config.has(key):
            section = config.section(key)
            return section.section(layer_type) if layer_type is not None and section.has(layer_type) else section
    return Config({}, config.path)


def context_length(config: Config) -> int:
    """How many positions the model was made for, its RoPE's stretching included."""
    trained = config.count("max_position_embeddings")
    section = rope_section(config)
    kind = _kind(section)
    if kind == "dynamic":
        return int(trained * section.number("factor"))
    if kind == "yarn":
        original = section.count("original_max_position_embeddings", trained)
        return max(trained, int(original * section.number("factor")))
    return trained


def make_rope(
    config: Config,
    head_dim: int,
    max_model_len: int,
    *,
    layer_type: str | None = None,
    base: float | None = None,
    default_base: float = DEFAULT_BASE,
    partial: bool = False,
) -> Rope:
    """The RoPE of one type of layer. ``base`` overrules the config, ``default_base`` holds when it says nothing.

    ``partial``: whether the family can rotate a part of each head only.
    """
    section = rope_section(config, layer_type)
    theta = base or section.number("rope_theta", config.number("rope_theta", default_base))
    share = section.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if share != 1 and not partial:
        raise config.error("partial_rotary_factor", share, "this family rotates all of a head")
    dims = int(head_dim * share)
    if dims < 2 or dims % 2 or dims > head_dim:
        raise config.error("partial_rotary_factor", share, f"must rotate an even number of the {head_dim} dimensions")
    kind = _kind(section)
    if kind not in _KINDS:
        raise section.error("rope_type", kind, f"must be one of {', '.join(_KINDS)}")
    return _KINDS[kind](config, section, theta, dims, max_model_len)


def _kind(section: Config) -> str:
    value = section.values.get("rope_type") or section.values.get("type") or "default"
    return {"su": "longrope"}.get(str(value), str(value))


def _plain(base: float, dims: int) -> list[float]:
    return [base ** (-i / dims) for i in range(0, dims, 2)]


def _default(_config: Config, _section: Config, base: float, dims: int, _max_len: int) -> Rope:
    return Rope(inv_freq=tuple(_plain(base, dims)))


def _linear(_config: Config, section: Config, base: float, dims: int, _max_len: int) -> Rope:
    factor = section.number("factor")
    return Rope(inv_freq=tuple(f / factor for f in _plain(base, dims)))


def _dynamic(config: Config, section: Config, base: float, dims: int, max_len: int) -> Rope:
    """NTK-aware scaling: the base grows with the served length beyond the trained one."""
    trained = config.count("max_position_embeddings")
    factor = section.number("factor")
    growth = factor * max(max_len, trained) / trained - (factor - 1)
    return Rope(inv_freq=tuple(_plain(base * growth ** (dims / (dims - 2)), dims)))


def _llama3(config: Config, section: Config, base: float, dims: int, _max_len: int) -> Rope:
    """Llama 3.1: long wavelengths are divided by ``factor``, short ones kept, those between interpolated."""
    factor, low, high = (section.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = section.count("original_max_position_embeddings", config.count("max_position_embeddings"))

    def scaled(f: float) -> float:
        turns = original * f / (2 * math.pi)
        if turns < low:
            return f / factor
        if turns > high:
            return f
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * f / factor + smooth * f

    return Rope(inv_freq=tuple(scaled(f) for f in _plain(base, dims)))


def _yarn(config: Config, section: Config, base: float, dims: int, _max_len: int) -> Rope:
    """YaRN (arXiv 2309.00071): a ramp over the dimensions from kept to interpolated, and a factor on attention."""
    trained = config.count("max_position_embeddings")
    original = section.count("original_max_position_embeddings", trained)
    factor = section.number("factor", trained / original)

    def dimension(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(section.number("beta_fast", 32)), dimension(section.number("beta_slow", 1))
    if section.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    span = high - low or 0.001

    def scaled(i: int, f: float) -> float:
        ramp = min(max((i - low) / span, 0), 1)
        return f / factor * ramp + f * (1 - ramp)

    inv_freq = tuple(scaled(i, f) for i, f in enumerate(_plain(base, dims)))
    return Rope(inv_freq=inv_freq, factor=_yarn_factor(section, factor))


def _yarn_factor(section: Config, factor: float) -> float:
    if section.has("attention_factor"):
        return section.number("attention_factor")

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if section.has("mscale") and section.has("mscale_all_dim"):
        return mscale(section.number("mscale")) / mscale(section.number("mscale_all_dim"))
    return mscale(1)


def _longrope(config: Config, section: Config, base: float, dims: int, max_len: int) -> Rope:
    """LongRoPE: one factor a dimension; the long ones when the served length is beyond the original one."""
    trained = config.count("max_position_embeddings")
    original = section.count(
        "original_max_position_embeddings", config.count("original_max_position_embeddings", trained)
    )
    factors = section.numbers("long_factor" if max_len > original else "short_factor", dims // 2)
    # Phi-3 gives no factor: it is the ratio of the two lengths.
    stretch = section.number("factor", trained / original)
    attention = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return Rope(
        inv_freq=tuple(f / g for f, g in zip(_plain(base, dims), factors, strict=True)),
        factor=section.number("attention_factor", attention),
    )


_KINDS: Mapping[str, Callable[[Config, Config, float, int, int], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
