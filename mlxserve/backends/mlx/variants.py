"""THE table of which variant runs for which rows, size and chip, and the only place that decides it.

The table built in is what bandwidth arithmetic and the simulator's counts suggest; nothing in it was measured on a Mac.
``mlxserve bench kernels --write FILE`` measures one there, and ``MLXSERVE_KERNEL_TABLE`` names the file to use instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from mlxserve.backends.mlx.kernels import MAX_ROWS, QmvTile
from mlxserve.errors import ConfigError

ANY = 2**31 - 1
SOURCE = "MLXSERVE_KERNEL_TABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """For steps of ``least_rows`` to ``most_rows`` rows. ``size``: a product's weight rows, an attention's longest
    context in tokens. ``generation``: of the GPU (13: M1 ... 17: M5), 0 for all. ``rows_per_lane`` and ``simdgroups``
    cut our product, 0 for its usual tile."""

    kernel: Literal["product", "attention"]
    variant: Literal["ours", "mlx"]
    least_rows: int = 1
    most_rows: int = ANY
    least_size: int = 0
    most_size: int = ANY
    generation: int = 0
    rows_per_lane: int = 0
    simdgroups: int = 0

    def holds(self, kernel: str, rows: int, size: int, generation: int) -> bool:
        return (
            self.kernel == kernel
            and self.least_rows <= rows <= self.most_rows
            and self.least_size <= size <= self.most_size
            and self.generation in (0, generation)
        )


# The first rule that holds decides; where none does, MLX's operator runs.
TABLE = (
    # From about here MLX's product by tiles uses the M5's matrix units, which ours does not.
    Rule(kernel="product", variant="mlx", least_rows=13, generation=17),
    Rule(kernel="product", variant="ours", most_rows=MAX_ROWS),
    Rule(kernel="attention", variant="ours"),
)
THREADGROUPS = 320  # an attention launch should have: about eight for each core of a large GPU


@dataclass(frozen=True, slots=True)
class Choice:
    """Of a product."""

    mlx: bool
    tile: QmvTile | None = None

    @property
    def fits_fused(self) -> bool:
        """A lane computes gate and up of an output side by side."""
        return self.tile is None or self.tile.rows_per_lane % 2 == 0


@dataclass(frozen=True, slots=True)
class Variants:
    rules: Sequence[Rule] = TABLE
    threadgroups: int = THREADGROUPS
    generation: int = 0  # 0: not known
    _products: dict[tuple[int, int], Choice] = field(default_factory=dict)

    def product(self, rows: int, size: int) -> Choice:
        """For ``rows`` rows and a weight of ``size`` rows."""
        key = (rows, size)
        if key not in self._products:
            rule = self._first("product", rows, size)
            cut = rule is not None and rule.rows_per_lane and rule.simdgroups
            tile = QmvTile(rule.rows_per_lane, rule.simdgroups) if rule is not None and cut else None
            self._products[key] = Choice(rule is None or rule.variant == "mlx", tile)
        return self._products[key]

    def paged(self, rows: int, context: int) -> bool:
        """Whether our attention runs. ``context``: the longest of the step."""
        rule = self._first("attention", rows, context)
        return rule is not None and rule.variant == "ours"

    def _first(self, kernel: str, rows: int, size: int) -> Rule | None:
        return next((r for r in self.rules if r.holds(kernel, rows, size, self.generation)), None)


def gpu_generation() -> int:
    """13 for an M1's ``applegpu_g13s``; 0 without a GPU."""
    if not mx.metal.is_available():
        return 0
    found = re.search(r"g(\d+)", str(mx.device_info().get("architecture", "")))
    return int(found[1]) if found else 0


def load_variants(path: str | None) -> Variants:
    """The table built in, or the one of a file. Raises ConfigError."""
    if path is None:
        return Variants(generation=gpu_generation())
    try:
        stored: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
        rules = tuple(Rule(**rule) for rule in stored["rules"])
        return Variants(rules, int(stored["threadgroups"]), gpu_generation())
    except OSError as error:
        raise ConfigError(SOURCE, path, f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(SOURCE, path, f"is not a table of `mlxserve bench kernels`: {error}") from error


def dump_variants(rules: Sequence[Rule], threadgroups: int) -> str:
    """As ``load_variants`` reads it."""
    return json.dumps({"threadgroups": threadgroups, "rules": [asdict(rule) for rule in rules]}, indent=1) + "\n"
