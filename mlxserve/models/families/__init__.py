"""From a config.json to a ModelSpec: one small file a family, found by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlxserve.config import DEFAULT_MAX_MODEL_LEN
from mlxserve.errors import ConfigError
from mlxserve.models.config import Config
from mlxserve.models.families.llama import llama
from mlxserve.models.rope import context_length
from mlxserve.models.spec import ModelSpec

FAMILIES: Mapping[str, Callable[[Config, int], ModelSpec]] = {
    "llama": llama,
}


def model_spec(config: Mapping[str, object], max_model_len: int | None = None) -> ModelSpec:
    """The spec of the model that ``config`` (the object in config.json) describes.

    ``max_model_len``: positions to be served; None for the model's own, at most DEFAULT_MAX_MODEL_LEN. Raises
    CheckpointError for a family or an option that is not supported, ConfigError when the model is shorter.
    """
    c = Config(config)
    family = c.one_of("model_type", FAMILIES)
    longest = context_length(c)
    if max_model_len is not None and max_model_len > longest:
        raise ConfigError("--max-model-len", max_model_len, f"this model has {longest} positions")
    return family(c, max_model_len or min(longest, DEFAULT_MAX_MODEL_LEN))
