"""``mlxserve models``: what is on this machine, and whether it fits."""

from __future__ import annotations

import argparse

from mlxserve.cli.progress import notice
from mlxserve.cli.sizes import size
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.errors import MlxserveError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.hub import Hub, LocalModel
from mlxserve.llm import choose_backend
from mlxserve.planning import fit, footprint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no flags of its own."""


def run(args: argparse.Namespace) -> int:
    models = Hub().local_models()
    if not models:
        print("No model is on this machine; `mlxserve pull org/name` fetches one.")
        return 0
    rows = [("model", "size", "quantisation", "fits now"), *(row(model) for model in models)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(3)]
    for name, bytes_, quantization, fits in rows:
        print(f"{name:{widths[0]}}  {bytes_:>{widths[1]}}  {quantization:{widths[2]}}  {fits}")
    return 0


def row(model: LocalModel) -> tuple[str, str, str, str]:
    return model.name, size(model.bytes), model.quantization or "-", fits(model)


def fits(model: LocalModel) -> str:
    """In the memory that is free now, with the server's defaults; or why it cannot be served."""
    engine = EngineConfig()
    try:
        checkpoint = open_checkpoint(str(model.path))
        backend = choose_backend(checkpoint, ModelConfig(), engine, notice)
        plan = footprint(checkpoint, backend, engine)
    except MlxserveError as error:
        return f"no: {error.message}"
    result = fit(plan, backend.free_memory(), engine)
    if not result.blocks:
        return f"no: {size(result.total_bytes)} and a KV pool"
    return f"yes, {result.blocks * engine.block_size} tokens of KV"
