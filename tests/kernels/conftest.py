"""Kernel tests run whole only when asked for by path (``pytest tests/kernels``); otherwise the tests marked quick.

Where the simulator cannot run they are skipped by name; CI must be able to run it.
"""

from __future__ import annotations

import os
import sys

import pytest

from kernels.sim.build import CompileError, find_compiler


def why_not() -> str | None:
    if sys.platform != "linux":
        return "the kernel simulator runs on Linux"
    try:
        find_compiler()
    except CompileError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    ours = [i for i in items if str(i.path).startswith(here)]
    if not any("kernels" in str(argument) for argument in config.invocation_params.args):
        slow = {i for i in ours if i.get_closest_marker("quick") is None}
        config.hook.pytest_deselected(items=list(slow))
        items[:] = [i for i in items if i not in slow]
    if not os.environ.get("CI") and (reason := why_not()) is not None:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))
