"""``mlxserve bench kernels``: our kernels' times beside MLX's on this GPU, as a table. Knows no array library."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlxserve.errors import MlxserveError

COLUMNS = (
    ("kernel", "kernel", "{}"),
    ("rows", "rows", "{}"),
    ("size", "size", "{}"),
    ("ours_us", "ours us", "{:.1f}"),
    ("mlx_us", "MLX us", "{:.1f}"),
    ("share", "of bandwidth", "{:.0%}"),
    ("variant", "faster", "{}"),
)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """``table``: the text of a file for ``MLXSERVE_KERNEL_TABLE``."""

    bandwidth_gb_s: float
    rows: list[dict[str, Any]]
    table: str


def require_gpu() -> None:
    """Raises MlxserveError where there is no MLX, or no GPU that it can use."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        raise MlxserveError(
            "`mlxserve bench kernels` times kernels on the GPU of Apple Silicon, which this machine lacks"
        )
    if importlib.util.find_spec("mlx") is None:
        raise MlxserveError("`mlxserve bench kernels` needs MLX: pip install 'mlxserve[mlx]'")


def measure_kernels(progress: Callable[[], object]) -> KernelTimes:
    """``progress`` is called after each measurement. Where ``require_gpu`` passes."""
    from mlxserve.backends.mlx import measure

    kernels, grid = measure.gpu_kernels(), measure.Grid()
    peak = measure.bandwidth(grid)
    timings = []
    for timing in measure.measure(kernels, grid):
        timings.append(timing)
        progress()
    rows = [
        {
            "kernel": t.kernel,
            "rows": t.rows,
            "size": t.size,
            "ours_us": t.ours,
            "mlx_us": t.mlx,
            "share": t.moved / t.ours / 1e3 / peak,
            "variant": t.variant,
        }
        for t in timings
    ]
    return KernelTimes(peak, rows, measure.table_text(timings))
