"""What `mlxserve plan` predicts is within 10% of what a load takes with its pool filled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_prediction_is_within_a_tenth() -> None:
    command = [sys.executable, "-m", "bench.memory", "--one", "smollm2-135m", "256"]  # steps of the full budget
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert result["blocks_used"] >= 240
    assert 0.9 < result["ratio"] < 1.1, result
