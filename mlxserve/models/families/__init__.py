"""From a config.json to a ModelSpec: one small file a family, found by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlxserve.config import DEFAULT_MAX_MODEL_LEN
from mlxserve.errors import ConfigError
from mlxserve.models.config import Config
from mlxserve.models.families.gemma import gemma2, gemma3
from mlxserve.models.families.granite import granite
from mlxserve.models.families.llama import llama
from mlxserve.models.families.mistral import mistral
from mlxserve.models.families.mixtral import mixtral
from mlxserve.models.families.olmo2 import olmo2
from mlxserve.models.families.phi3 import phi3
from mlxserve.models.families.qwen import qwen2, qwen3, qwen3_moe
from mlxserve.models.families.smollm3 import smollm3
from mlxserve.models.rope import context_length
from mlxserve.models.spec import ModelSpec

FAMILIES: Mapping[str, Callable[[Config, int], ModelSpec]] = {
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "granite": granite,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "olmo2": olmo2,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "smollm3": smollm3,
}


def model_spec(config: Mapping[str, object], max_model_len: int | None = None) -> ModelSpec:
    """The spec of the model that ``config`` (the object in config.json) describes.

    ``max_model_len``: positions to be served; None for the model's own, at most DEFAULT_MAX_MODEL_LEN. Raises
    CheckpointError for a family or an option that is not supported, ConfigError when the model is shorter.
    """
    c = Config(config)
    family = c.one_of("model_type", FAMILIES)
    return family(c, served_length(c, max_model_len))


def served_length(c: Config, max_model_len: int | None) -> int:
    """Positions to be served. Raises ConfigError when the model has fewer than are asked for."""
    longest = context_length(c)
    if max_model_len is not None and max_model_len > longest:
        raise ConfigError("--max-model-len", max_model_len, f"this model has {longest} positions")
    return max_model_len or min(longest, DEFAULT_MAX_MODEL_LEN)
