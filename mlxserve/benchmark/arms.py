"""The arms of ``mlxserve bench``: which engines are compared, and one process for each.

Knows which library an arm needs and how to start its process; ``worker`` is what runs inside.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mlxserve.benchmark.summary import RequestRecord
from mlxserve.config import EngineConfig
from mlxserve.errors import MlxserveError

APPLE = platform.system() == "Darwin" and platform.machine() == "arm64"


@dataclass(frozen=True, slots=True)
class Arm:
    """One engine configuration. ``runner`` names a function of ``worker``."""

    name: str
    title: str
    runner: str
    options: Mapping[str, Any]
    needs: str | None = None  # a library
    metal: bool = False

    def missing(self) -> str | None:
        """What this machine lacks for the arm; None when it can run."""
        if self.metal and not APPLE:
            return "needs Apple Silicon"
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            return f"needs the library {self.needs}"
        return None


ARMS = (
    Arm("prefix-cache", "mlxserve, prefix cache", "engine", {"backend": "auto"}),
    Arm("no-prefix-cache", "mlxserve, no prefix cache", "engine", {"backend": "auto", "prefix_caching": False}),
    Arm("metal", "mlxserve, Metal kernels", "engine", {"backend": "mlx"}, "mlx", metal=True),
    Arm("mlx-reference", "mlxserve, MLX reference ops", "engine", {"backend": "mlx", "kernels": "off"}, "mlx"),
    Arm("torch", "mlxserve, torch CPU", "engine", {"backend": "torch"}, "torch"),
)
BASELINES = (
    Arm("transformers", "transformers, static batches", "transformers", {}, "transformers"),
    Arm("mlx-lm", "mlx-lm, batch_generate", "mlx_lm", {}, "mlx_lm"),
    Arm("llama.cpp", "llama.cpp, multi-sequence", "llama_cpp", {}, "llama_cpp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every arm is given."""

    model: str
    num_prompts: int = 16
    max_tokens: int = 64
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm's process measured, from submission on."""

    records: list[RequestRecord]
    duration_s: float
    padded_tokens: int | None  # prompt positions computed for nothing; None: the engine cannot say
    peak_memory_bytes: int
    details: Mapping[str, Any]


def run_arm(arm: Arm, workload: Workload, engine: EngineConfig, progress: Callable[[int], None]) -> ArmResult:
    """Runs one arm in a process of its own. ``progress`` gets how many more prompts are done.

    Raises MlxserveError with the arm's own last words when its process fails.
    """
    job = {"arm": arm.runner, "options": dict(arm.options), "workload": asdict(workload), "engine": asdict(engine)}
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxserve.benchmark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(json.dumps(job))
    process.stdin.close()
    result: dict[str, Any] | None = None
    with process:
        for line in process.stdout:
            event = json.loads(line)
            if "done" in event:
                progress(event["done"])
            else:
                result = event
        words = process.stderr.read().strip().splitlines()
    if result is None:
        raise MlxserveError(f"The arm {arm.name} failed: {words[-1] if words else 'its process ended'}")
    result["records"] = [RequestRecord(**record) for record in result["records"]]
    return ArmResult(**result)
