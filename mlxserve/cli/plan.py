"""``mlxserve plan``: what a model will need, before any weight is read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import get_args

from mlxserve.cli.options import add_engine_options, add_weight_options, engine_config
from mlxserve.cli.progress import notice
from mlxserve.cli.sizes import GIB, KIB, size
from mlxserve.config import BackendName, DtypeName, EngineConfig, ModelConfig
from mlxserve.formats.checkpoint import Checkpoint
from mlxserve.hub import Hub
from mlxserve.llm import choose_backend, quantized_as_asked
from mlxserve.planning import (
    CHIPS,
    MAC_MEMORY_GIB,
    Footprint,
    fit,
    footprint,
    gpu_memory,
    metal_footprint,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M", help="as `mlxserve serve --model` takes it")
    parser.add_argument("--backend", choices=get_args(BackendName), default="auto", help="on this machine")
    parser.add_argument("--dtype", choices=get_args(DtypeName), default="auto", help="on this machine")
    add_weight_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    engine = engine_config(args)
    model = ModelConfig(
        model=args.model,
        backend=args.backend,
        dtype=args.dtype,
        cpu_weights=args.cpu_weights,
        quant=args.quant,
        group_size=args.group_size,
    )
    with Hub().outlined(args.model) as found:
        checkpoint = quantized_as_asked(found, model)
        backend = choose_backend(checkpoint, model, engine, notice)
        here = footprint(checkpoint, backend, engine)
        print("\n".join(this_machine(checkpoint, here, engine, backend.free_memory())))
        print("\n".join(macs(metal_footprint(checkpoint, engine), engine)))
    return 0


def this_machine(checkpoint: Checkpoint, here: Footprint, engine: EngineConfig, free: int) -> Iterator[str]:
    """``free``: bytes that are free now."""
    spec = here.spec
    result = fit(here, free, engine)
    yield f"model        {checkpoint.name}: {spec.family}, {len(spec.layers)} layers, {_count(here.weights.parameters)}"
    yield f"             quantisation {checkpoint.source.quantization}, served up to {spec.max_model_len} tokens"
    yield ""
    yield f"On this machine ({here.backend}, {here.dtype}, {free / GIB:.1f} GiB free)"
    yield f"weights      {size(here.weights.total)}"
    kv, block = here.kv_token_bytes / KIB, here.block_bytes(engine)
    yield f"KV           {kv:.1f} KiB a token, {size(block)} a block of {engine.block_size}"
    yield f"activations  {size(here.activation_bytes)}, the largest step"
    yield f"process      {size(here.runtime_bytes)}, Python and libraries"
    if not result.blocks:
        least = here.fixed_bytes() + 2 * engine.max_num_seqs * block
        yield f"It does not fit: with the smallest pool that is {size(least)}."
        return
    tokens = result.blocks * engine.block_size
    yield f"KV pool      {size(result.pool_bytes)} when full: {result.blocks} blocks, {tokens} tokens"
    yield f"total        {size(result.total_bytes)} with the pool full"
    yield f"holds        {_sequences(result.full_sequences, spec.max_model_len, tokens)}"


def macs(metal: Footprint, engine: EngineConfig) -> Iterator[str]:
    """On Apple Silicon, whatever this machine is."""
    length = metal.spec.max_model_len
    yield ""
    yield f"On a Mac (Metal, {metal.dtype}; calculated, not measured)"
    yield f"weights      {size(metal.weights.total)}, KV {metal.kv_token_bytes / KIB:.1f} KiB a token"
    yield ""
    yield f"{'memory':>8}  {'for the GPU':>11}  {'total':>9}  holds"
    for memory in MAC_MEMORY_GIB:
        available = gpu_memory(memory)
        result = fit(metal, available, engine)
        tokens = result.blocks * engine.block_size
        holds = _sequences(result.full_sequences, length, tokens) if result.blocks else "does not fit"
        yield f"{memory:4} GiB  {size(available):>11}  {size(result.total_bytes):>9}  {holds}"
    yield ""
    yield "Decode speed of one sequence, at most (memory bandwidth over bytes read a token)"
    yield f"{'chip':>18}  {'bandwidth':>9}  {'short context':>13}  {f'{length} tokens':>13}"
    for chip in CHIPS:
        short, full = (metal.tokens_per_second(chip.bandwidth, context) for context in (0, length))
        yield f"{chip.name:>18}  {chip.bandwidth / 1e9:4.0f} GB/s  {short:7.0f} tok/s  {full:7.0f} tok/s"


def _sequences(full: int, length: int, tokens: int) -> str:
    if full:
        return f"{full} sequence{'s' * (full != 1)} of {length} tokens at once"
    return f"{tokens} tokens, less than one sequence of {length}"


def _count(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f}B parameters"
    return f"{parameters / 1e6:.1f}M parameters"
