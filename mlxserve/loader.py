"""A checkpoint's tensors into a model on a device.

Knows no file format and no array library: the checkpoint gives config and tensors, the backend makes its own arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mlxserve.backends.base import Backend, LoadedModel
from mlxserve.formats.tensors import DenseDtype, TensorSource
from mlxserve.models.decoder import Decoder
from mlxserve.models.families import FAMILIES, model_spec
from mlxserve.models.ops import A, B
from mlxserve.models.weights import WeightReader


class Weights(Protocol):
    """What a model is loaded from (``formats.checkpoint.Checkpoint`` is one)."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def source(self) -> TensorSource: ...


def load_model(
    checkpoint: Weights,
    backend: Backend[A, B],
    max_model_len: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel[A, B]:
    """Called on the device's thread. ``max_model_len``: positions to serve; None for the model's own, at most
    DEFAULT_MAX_MODEL_LEN. ``progress`` is told the tensors read and the tensors in all.

    Raises CheckpointError when the model is not supported or a tensor is missing, misshapen, damaged or left over.
    """
    if checkpoint.config.get("model_type") not in FAMILIES:
        bridged = backend.bridge(checkpoint.config, checkpoint.source, max_model_len, progress)
        if bridged is not None:
            return bridged
    spec = model_spec(checkpoint.config, max_model_len)
    reader = WeightReader(checkpoint.source, backend.ops, progress)
    decoder = Decoder(spec, backend.ops, reader)
    return LoadedModel(spec, decoder, checkpoint.source.quantization, reader.weight_bytes)


def checkpoint_dtype(config: Mapping[str, Any]) -> DenseDtype:
    """What ``dtype auto`` means on a GPU; float32 when config.json does not say."""
    match config.get("dtype") or config.get("torch_dtype"):
        case "float16":
            return "float16"
        case "bfloat16":
            return "bfloat16"
        case _:
            return "float32"
