"""An engine's process over a FakeRunner. A model named "broken" cannot be loaded, "slow" takes a second, "endless" does
not end loading; a prompt that
begins with 666 kills the process when it is computed. An argument before the socket's number names a file that gets the
process's id."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.engine.interfaces import EngineCore, ForwardBatch, Pending
from mlxserve.errors import CheckpointError
from mlxserve.ipc.child import run_child
from mlxserve.types import ModelInfo
from tests.engine.support import EOS, MAX_LEN, VOCAB, make_engine
from tests.fakes import FakeForward, FakeRunner

DEADLY = 666


class DeadlyRunner(FakeRunner):
    def forward(self, batch: ForwardBatch, prev: Pending | None) -> FakeForward:
        if (DEADLY, 0) in zip(batch.tokens, batch.positions, strict=True):
            os.kill(os.getpid(), signal.SIGABRT)
        return super().forward(batch, prev)


def build(
    model: ModelConfig, engine: EngineConfig, progress: Callable[[int, int], None]
) -> tuple[EngineCore, ModelInfo, list[str]]:
    if model.model == "broken":
        raise CheckpointError("the model is broken")
    if model.model == "crash":
        os._exit(7)
    progress(1, 2)
    time.sleep({"slow": 1.0, "endless": 3600.0}.get(model.model, 0.0))
    progress(2, 2)
    runner = DeadlyRunner(num_blocks=400, vocab_size=VOCAB, step_s=0.002)
    info = ModelInfo(
        name=model.model,
        quantization="none",
        backend="fake",
        dtype="float32",
        vocab_size=VOCAB,
        max_model_len=MAX_LEN,
        block_size=runner.block_size,
        num_blocks=runner.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        eos_token_ids=EOS,
    )
    return make_engine(runner), info, ["plan"]


if __name__ == "__main__":
    for name in sys.argv[1:-1]:
        with Path(name).open("a") as pids:
            pids.write(f"{os.getpid()}\n")
    run_child(socket.socket(fileno=int(sys.argv[-1])), build)
