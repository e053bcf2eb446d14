"""Runs architectures that ``models/`` does not have with mlx-lm's own model classes, over our pages where they keep
keys and values only.

mlx-lm is imported here and in ``bridge_states``, and only for such a model. It names its classes by ``model_type``; no
file of the model's directory is executed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.quantized import quantize
from numpy.typing import NDArray

from mlxserve.backends.base import LoadedModel
from mlxserve.backends.mlx.batch import MlxBatch
from mlxserve.backends.mlx.bridge_cache import PagedCache, Part, Probe
from mlxserve.backends.mlx.tensors import to_mlx
from mlxserve.errors import CheckpointError
from mlxserve.formats.tensors import AffineTensor, TensorSource
from mlxserve.models.config import Config
from mlxserve.models.families import served_length
from mlxserve.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec

LIBRARY = "mlx-lm"


class Bridge:
    """A decoder whose forward pass is mlx-lm's."""

    def __init__(self, model: Any, probes: Sequence[Probe]) -> None:
        self._model = model
        self._probes = probes

    def __call__(self, batch: MlxBatch) -> mx.array:
        """[T] tokens -> [R, vocabulary] logits: sequences with one token together, every chunk by itself."""
        host = batch.host
        lens = np.diff(host.query_starts)
        groups = [np.flatnonzero(lens == 1), *np.flatnonzero(lens > 1)[:, None]]
        done = [self._run(batch, group) for group in groups if group.size]
        rows = np.concatenate([rows for rows, _ in done])
        logits = mx.concatenate([logits for _, logits in done])
        order = np.argsort(rows, kind="stable")
        return logits[mx.array(order.astype(np.int32))]

    def _run(self, batch: MlxBatch, group: NDArray[np.int64]) -> tuple[NDArray[np.int64], mx.array]:
        """One call of the model. Flat rows whose logits are wanted, ascending, and their logits."""
        host = batch.host
        starts, ends = host.query_starts[group], host.query_starts[group + 1]
        flat = np.concatenate([np.arange(a, b) for a, b in zip(starts, ends, strict=True)])
        at = mx.array(flat.astype(np.int32))
        tables = [host.block_tables[s] for s in group]
        padded = np.empty((len(group), max(t.size for t in tables)), np.int32)
        for row, table in zip(padded, tables, strict=True):
            row[: table.size] = table
            row[table.size :] = table[0]
        before = host.positions[starts]
        part = Part(
            offset=int(before[0]) if len(group) == 1 else mx.array(before.astype(np.int32)),
            positions=batch.positions[at].reshape(len(group), -1),
            blocks=batch.blocks[at],
            places=batch.offsets[at],
            tables=mx.array(padded),
            keys=int(host.context_lens[group[0]]) if len(group) == 1 else padded.shape[1] * host.block_size,
        )
        cache = [PagedCache(batch.pool, i, part, p.width, p.v_width) for i, p in enumerate(self._probes)]
        logits = self._model(batch.tokens[at].reshape(len(group), -1), cache=cache)
        wanted = np.flatnonzero(np.isin(flat, host.logit_rows))
        return flat[wanted], logits.reshape(len(flat), -1)[mx.array(wanted.astype(np.int32))]


def load_bridge(
    config: Mapping[str, Any],
    source: TensorSource,
    dtype: mx.Dtype,
    max_model_len: int | None,
    progress: Callable[[int, int], None] | None,
) -> LoadedModel[mx.array, MlxBatch] | None:
    """None when mlx-lm is not installed or does not have the architecture. Raises CheckpointError when it cannot be
    built or when the weights do not fit it exactly."""
    classes = _classes(str(config.get("model_type")))
    if classes is None:
        return None
    length = served_length(Config(config), max_model_len)
    weights = _read(source, dtype, progress)
    size = sum(w.nbytes for w in weights.values())
    model = _build(classes, config, weights)
    if not _keeps_pages(model):
        from mlxserve.backends.mlx.bridge_states import SequenceBridge

        spec = _spec(config, length, (), _vocabulary(model))
        return LoadedModel(spec, SequenceBridge(model), source.quantization, size, LIBRARY, paged=False)
    probes, vocab = _probe(model)
    spec = _spec(config, length, probes, vocab)
    return LoadedModel(spec, Bridge(model, probes), source.quantization, size, LIBRARY)


def _classes(model_type: str) -> tuple[Any, Any] | None:
    """mlx-lm's class of the model and of its arguments."""
    if importlib.util.find_spec("mlx_lm") is None or not re.fullmatch(r"[A-Za-z0-9_-]+", model_type):
        return None
    from mlx_lm.utils import MODEL_REMAPPING

    name = f"mlx_lm.models.{MODEL_REMAPPING.get(model_type, model_type)}"
    if importlib.util.find_spec(name) is None:
        return None
    module = vars(importlib.import_module(name))
    return (module["Model"], module["ModelArgs"]) if {"Model", "ModelArgs"} <= module.keys() else None


def _read(source: TensorSource, dtype: mx.Dtype, progress: Callable[[int, int], None] | None) -> dict[str, mx.array]:
    """Every tensor in mlx-lm's form: a quantised one is three."""
    names, out = sorted(source.names()), {}
    for i, name in enumerate(names, 1):
        tensor = source.read(name)
        if isinstance(tensor, AffineTensor):
            module = name.removesuffix(".weight")
            out[name] = mx.array(tensor.packed)
            out[f"{module}.scales"] = to_mlx(tensor.scales, dtype)
            out[f"{module}.biases"] = to_mlx(tensor.biases, dtype)
        else:
            out[name] = to_mlx(tensor, dtype)
        if progress is not None:
            progress(i, len(names))
    return out


def _build(classes: tuple[Any, Any], config: Mapping[str, Any], weights: dict[str, mx.array]) -> Any:
    model_class, args_class = classes
    try:
        model = model_class(args_class.from_dict(_old_form(config)))
        if hasattr(model, "sanitize"):
            weights = model.sanitize(weights)
        quantize(model, class_predicate=lambda path, module: _quantisation(path, module, weights))
        model.load_weights(list(weights.items()), strict=True)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        # What mlx-lm's constructors raise for a config or for weights that they do not expect.
        raise CheckpointError(f"{LIBRARY} cannot load this {config['model_type']}: {error}") from error
    model.eval()
    mx.eval(model.parameters())
    return model


def _old_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """mlx-lm looks for RoPE's parameters where transformers 4 wrote them."""
    rope = config.get("rope_parameters") or {}
    old = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    if scaling.get("rope_type", "default") != "default":
        old["rope_scaling"] = scaling
    return {**rope, **old, **config}


def _quantisation(path: str, module: Any, weights: Mapping[str, mx.array]) -> bool | dict[str, int]:
    """Bits and group size of a module whose weights are quantised, from the shapes of its tensors."""
    if f"{path}.scales" not in weights or not hasattr(module, "to_quantized"):
        return False
    width = module.weight.shape[-1]
    return {
        "bits": weights[f"{path}.weight"].shape[-1] * 32 // width,
        "group_size": width // weights[f"{path}.scales"].shape[-1],
    }


def _keeps_pages(model: Any) -> bool:
    """Whether every layer keeps the keys and values of all tokens, or of a window, and nothing else."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

    return all(
        type(cache) is KVCache or (type(cache) is RotatingKVCache and cache.keep == 0)
        for cache in make_prompt_cache(model)
    )


def _vocabulary(model: Any) -> int:
    """How many logits there are."""
    from mlx_lm.models.cache import make_prompt_cache

    logits: mx.array = model(mx.array([[0]]), cache=make_prompt_cache(model))
    return int(logits.shape[-1])


def _probe(model: Any) -> tuple[list[Probe], int]:
    """Runs one token to see what each layer keeps, and how many logits there are."""
    from mlx_lm.models.cache import make_prompt_cache

    probes = [Probe() for _ in make_prompt_cache(model)]
    logits: mx.array = model(mx.array([[0]]), cache=probes)
    return probes, int(logits.shape[-1])


def _spec(config: Mapping[str, Any], max_model_len: int, probes: Sequence[Probe], vocab: int) -> ModelSpec:
    """What the engine and the pages need to know. The rest is as far as config.json tells, and nothing computes
    with it."""
    c = Config(config)
    hidden = c.count("hidden_size", 1)
    mlp = MlpSpec(width=c.count("intermediate_size", 4 * hidden), act="silu")
    attention = [
        AttentionSpec(
            heads=c.count("num_attention_heads", p.kv_heads),
            kv_heads=p.kv_heads,
            head_dim=max(p.width, p.v_width),
            scale=1.0,
            rope=None,
        )
        for p in probes
    ]
    return ModelSpec(
        family=str(config["model_type"]),
        hidden=hidden,
        vocab=vocab,
        eps=0.0,
        layers=tuple(LayerSpec(attention=a, mlp=mlp) for a in attention),
        max_model_len=max_model_len,
        tied=c.flag("tie_word_embeddings"),
    )
