"""The arms of ``mlxserve bench``: which engines are compared, and one process for each.

Knows what an arm needs and how to start its process; ``worker`` is what runs inside.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from mlxserve.benchmark.summary import RequestRecord
from mlxserve.config import BackendName, EngineConfig, KernelsName, MetalConfig, ModelConfig
from mlxserve.errors import MlxserveError

APPLE = platform.system() == "Darwin" and platform.machine() == "arm64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What an arm is given."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    num_prompts: int = 16
    max_tokens: int = 64

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Workload:
        """The inverse of ``asdict``."""
        model = {**content["model"], "metal": MetalConfig(**content["model"]["metal"])}
        return cls(**{**content, "model": ModelConfig(**model), "engine": EngineConfig(**content["engine"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One engine configuration. ``runner`` names a function of ``worker``; None leaves what the flags say."""

    name: str
    title: str
    runner: str = "engine"
    backend: BackendName | None = None
    kernels: KernelsName | None = None
    prefix_caching: bool | None = None
    needs: str | None = None  # a library
    metal: bool = False
    gguf_only: bool = False

    def missing(self, model: Path) -> str | None:
        """What this machine lacks for the arm, or why it cannot read ``model``; None when it can run."""
        if self.metal and not APPLE:
            return "needs Apple Silicon"
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            return f"needs the library {self.needs}"
        if self.gguf_only and model.suffix.lower() != ".gguf":
            return "reads .gguf files only"
        return None

    def applied(self, workload: Workload) -> Workload:
        """``workload`` with this arm's own settings."""
        model, engine = workload.model, workload.engine
        if self.backend is not None:
            model = replace(model, backend=self.backend)
        if self.kernels is not None:
            model = replace(model, metal=replace(model.metal, kernels=self.kernels))
        if self.prefix_caching is not None:
            engine = replace(engine, prefix_caching=self.prefix_caching)
        return replace(workload, model=model, engine=engine)


ARMS = (
    Arm(name="prefix-cache", title="mlxserve, prefix cache", prefix_caching=True),
    Arm(name="no-prefix-cache", title="mlxserve, no prefix cache", prefix_caching=False),
    Arm(name="metal", title="mlxserve, Metal kernels", backend="mlx", kernels="on", needs="mlx", metal=True),
    Arm(name="mlx-reference", title="mlxserve, MLX reference ops", backend="mlx", kernels="off", needs="mlx"),
    Arm(name="torch", title="mlxserve, torch CPU", backend="torch", needs="torch"),
)
BASELINES = (
    Arm(name="transformers", title="transformers, static batches", runner="transformers", needs="transformers"),
    Arm(name="mlx-lm", title="mlx-lm, continuous batches", runner="mlx_lm", needs="mlx_lm"),
    Arm(name="llama.cpp", title="llama.cpp, multi-sequence", runner="llama_cpp", needs="llama_cpp", gguf_only=True),
)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm's process measured, from submission on."""

    records: list[RequestRecord]
    duration_s: float
    padded_tokens: int | None  # prompt positions computed for nothing; None: the engine cannot say
    peak_memory_bytes: int
    details: Mapping[str, Any]


def run_arm(arm: Arm, workload: Workload, progress: Callable[[int], None]) -> ArmResult:
    """Runs one arm in a process of its own, which ends with this call however that ends. ``progress`` gets how many
    more prompts are done.

    Raises MlxserveError with the arm's own last words when its process fails.
    """
    job = json.dumps({"runner": arm.runner, "workload": asdict(arm.applied(workload))})
    result: dict[str, Any] | None = None
    # A file, not a pipe: some libraries log more than a pipe holds, and nobody reads before the end.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlxserve.benchmark.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(job)
                process.stdin.close()
                for line in process.stdout:
                    event = json.loads(line)
                    if "done" in event:
                        progress(event["done"])
                    else:
                        result = event
            finally:
                if result is None:
                    process.kill()
        if result is None:
            raise MlxserveError(f"the arm {arm.name} failed: {_last_words(log, process.returncode)}")
    result["records"] = [RequestRecord(**record) for record in result["records"]]
    return ArmResult(**result)


def _last_words(log: IO[str], status: int) -> str:
    log.seek(0)
    lines = log.read().strip().splitlines()
    return lines[-1] if lines else f"its process ended with status {status}"
