"""The flags that several commands share, and the settings made of them."""

from __future__ import annotations

import argparse
import dataclasses
from typing import get_args

from mlxserve.config import (
    AttentionKind,
    BackendName,
    CpuWeights,
    DtypeName,
    EngineConfig,
    KVWrite,
    MetalConfig,
    ModelConfig,
    Quantization,
    SchedulePolicy,
    model_from_environment,
)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--model, --backend and --dtype."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="M",
        default=model_from_environment(),
        help="smollm2-135m, a directory in Hugging Face form, a .gguf file, or org/name[@revision] on the hub "
        "(default: $MLXSERVE_MODEL, smollm2-135m)",
    )
    group.add_argument(
        "--backend",
        choices=get_args(BackendName),
        default="auto",
        help="auto: mlx on Apple Silicon, else torch (default: auto)",
    )
    group.add_argument(
        "--dtype",
        choices=get_args(DtypeName),
        default="auto",
        help="of activations and the KV cache; auto, the default: float32 on CPUs, the checkpoint's own on Metal",
    )
    add_weight_options(group)
    group.add_argument(
        "--attention-backend",
        choices=get_args(AttentionKind),
        default="auto",
        help="on torch: batched gathers pages, paged goes over them, reference is the definition (auto: batched)",
    )
    group.add_argument(
        "--kv-write",
        choices=get_args(KVWrite),
        default="scatter",
        help="with Metal kernels; inplace: K and V written straight into their pages, unproven (default: scatter)",
    )
    group.add_argument(
        "--wired-limit", type=float, metavar="GIB", help="memory that macOS keeps resident (default: macOS decides)"
    )


def add_weight_options(parser: argparse._ActionsContainer) -> None:
    """How the weights are kept: --cpu-weights, --quant and --group-size."""
    parser.add_argument(
        "--cpu-weights",
        choices=get_args(CpuWeights),
        default="auto",
        help="on torch: how 4-bit weights are kept by the C++ operators; float32: exact, without them (auto: measured)",
    )
    parser.add_argument(
        "--quant",
        choices=get_args(Quantization),
        default="none",
        help="quantise the weights while loading (default: none)",
    )
    parser.add_argument(
        "--group-size", type=int, default=64, metavar="N", help="columns that share a scale, with --quant (default: 64)"
    )


def model_config(args: argparse.Namespace) -> ModelConfig:
    metal = MetalConfig(kv_write=args.kv_write, wired_limit=args.wired_limit)
    return ModelConfig(
        model=args.model,
        backend=args.backend,
        dtype=args.dtype,
        attention=args.attention_backend,
        cpu_weights=args.cpu_weights,
        quant=args.quant,
        group_size=args.group_size,
        metal=metal,
    )


_ENGINE_FLAGS: dict[str, tuple[type, str]] = {
    "max_model_len": (int, "longest prompt and answer together, tokens (default: the model's, at most 8192)"),
    "max_num_seqs": (int, "sequences computed together"),
    "max_num_batched_tokens": (int, "tokens computed in one step"),
    "prefill_chunk": (int, "tokens of one prompt computed in one step"),
    "block_size": (int, "tokens a KV block holds, a power of two"),
    "kv_blocks": (int, "blocks in the KV pool (default: from --memory-utilization)"),
    "memory_utilization": (float, "share of the memory left by the weights that the KV pool may take"),
}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """The scheduler's and the KV pool's flags; their defaults are EngineConfig's."""
    group = parser.add_argument_group("engine")
    defaults = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    for name, (kind, text) in _ENGINE_FLAGS.items():
        default = defaults[name]
        shown = text if default is None else f"{text} (default: {default})"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", default=default, help=shown)
    group.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=defaults["prefix_caching"],
        help="share the KV blocks of equal prompt beginnings (default: yes)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="equal bits whatever the batch, the chunks and the cache (torch; slower without the C++ operators)",
    )
    group.add_argument(
        "--schedule-policy",
        choices=get_args(SchedulePolicy),
        default=defaults["schedule_policy"],
        help="fifo, or priority: by the request's priority, with aging (default: fifo)",
    )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Raises ConfigError naming the flag that is out of range."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    return EngineConfig(**{name: getattr(args, name) for name in names if hasattr(args, name)})
