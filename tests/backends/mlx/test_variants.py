"""The table of variants: which rule decides, its file, and the bench that makes one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mlxserve.backends.mlx.kernel_source import simulated
from mlxserve.backends.mlx.kernels import Kernels, QmvTile
from mlxserve.backends.mlx.measure import Grid, Timing, bandwidth, measure, rules
from mlxserve.backends.mlx.variants import Rule, Variants, dump_variants, load_variants
from mlxserve.errors import ConfigError
from tests.backends.mlx.test_kernel_ops import _no_simulator


def test_the_first_rule_that_holds_decides() -> None:
    built_in = Variants()
    assert not built_in.product(16, 4096).mlx
    assert Variants(generation=17).product(16, 4096).mlx
    assert not Variants(generation=17).product(12, 4096).mlx
    assert built_in.paged(1, 10**6)
    tiled = Variants((Rule(kernel="product", variant="ours", most_size=512, rows_per_lane=1, simdgroups=2),))
    assert tiled.product(1, 512).tile == QmvTile(1, 2)
    assert not tiled.product(1, 512).fits_fused
    assert tiled.product(1, 513).mlx, "no rule holds"
    assert not tiled.paged(1, 1)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    wanted = (Rule(kernel="product", variant="mlx", least_rows=3), Rule(kernel="attention", variant="ours"))
    path = tmp_path / "table.json"
    path.write_text(dump_variants(wanted, 77))
    read = load_variants(str(path))
    assert (tuple(read.rules), read.threadgroups) == (wanted, 77)


@pytest.mark.parametrize("text", ["", "[]", '{"rules": [{"kernel": "product"}]}', '{"rules": [], "threadgroups": "x"}'])
def test_a_damaged_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a table of"):
        load_variants(str(path))


def test_the_faster_one_is_written_for_the_sizes_up_to_it() -> None:
    times = [
        Timing("product", 1, 1024, 5.0, 9.0, 0, 2),
        Timing("product", 8, 1024, 9.0, 5.0, 0, 2),
        Timing("attention", 1, 512, 9.0, 5.0, 0),
        Timing("attention", 1, 4096, 5.0, 9.0, 0),
    ]
    made = Variants(rules(times, 14), generation=14)
    assert [made.product(rows, 5000).mlx for rows in (1, 2, 16)] == [False, True, True]
    assert [made.paged(4, context) for context in (512, 513, 10**5)] == [False, True, True]
    assert replace(made, generation=13, _products={}).product(1, 5000).mlx, "another chip's"


@pytest.mark.skipif(_no_simulator() is not None, reason=_no_simulator() or "")
def test_everything_is_measured() -> None:
    attention = {"sequences": (2,), "contexts": (40,), "heads": 4, "kv_heads": 2, "head_dim": 64}
    grid = Grid(rows=(2,), weights=(64,), width=128, repeats=1, copied=4096, **attention)  # type: ignore[arg-type]
    found = list(measure(Kernels(simulated()), grid))
    assert [t.kernel for t in found] == ["product", "attention"]
    assert all(t.ours > 0 and t.mlx > 0 and t.moved > 0 for t in found)
    assert bandwidth(grid) > 0
    assert len(rules(found, 0)) == 2


def test_the_command_says_that_it_needs_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlxserve", "bench", "kernels"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0
    assert "on the GPU of Apple Silicon" in done.stderr
    assert "Traceback" not in done.stderr
