"""What ``serve`` starts beside itself: the process that holds the model. Its one argument is a socket's number."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

from mlxserve.cli.progress import notice
from mlxserve.cli.startup import startup_plan
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.engine.interfaces import EngineCore
from mlxserve.ipc.child import run_child
from mlxserve.llm import assemble
from mlxserve.types import ModelInfo


def build(
    model: ModelConfig, engine: EngineConfig, progress: Callable[[int, int], None]
) -> tuple[EngineCore, ModelInfo, list[str]]:
    parts = assemble(model, engine, progress, notice)
    return parts.core, parts.info, startup_plan(parts)


if __name__ == "__main__":
    run_child(socket.socket(fileno=int(sys.argv[1])), build)
