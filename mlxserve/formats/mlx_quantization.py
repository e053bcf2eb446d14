"""How MLX writes down in config.json which modules are quantised, and with how many bits.

    "quantization": {"group_size": 64, "bits": 4, "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 8}, ...}

A module's entry may be false: not quantised. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxserve.errors import CheckpointError
from mlxserve.formats.text_names import text_name

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Affine:
    bits: int
    group_size: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """The default, and what single modules have instead. Module names are as ``text_name`` has them."""

    default: Affine | None
    modules: Mapping[str, Affine | None]

    def of_module(self, name: str) -> Affine | None:
        return self.modules.get(name, self.default)

    @classmethod
    def of(cls, config: Mapping[str, Any], where: object) -> Quantization:
        """Raises CheckpointError naming a method, a mode or a number that is not supported."""
        section = config.get("quantization") or config.get("quantization_config")
        if not section:
            return cls(None, {})
        if not isinstance(section, dict):
            raise CheckpointError(f"{where}: the quantization in config.json is not an object")
        if "quant_method" in section:
            raise CheckpointError(
                f"{where}: weights quantised by {section['quant_method']!r} are not supported; "
                "supported are MLX's affine ones"
            )
        modules = {
            text_name(name): _affine(value, f"{where}: {name}") if isinstance(value, dict) else None
            for name, value in section.items()
            if isinstance(value, dict) or value is False
        }
        return cls(_affine(section, where), modules)


def _affine(section: Mapping[str, Any], where: object) -> Affine:
    mode, bits, group = section.get("mode", "affine"), section.get("bits"), section.get("group_size")
    if mode != "affine":
        raise CheckpointError(f"{where}: the quantisation mode {mode!r} is not supported; supported is 'affine'")
    if bits not in BITS or group not in GROUP_SIZES or isinstance(bits, bool):
        raise CheckpointError(
            f"{where}: quantisation to {bits} bits in groups of {group} is not supported; "
            f"supported are {BITS} bits and groups of {GROUP_SIZES}"
        )
    return Affine(int(bits), int(group))
