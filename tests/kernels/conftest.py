"""Kernel tests run whole only when asked for by path (``pytest tests/kernels``); otherwise the tests marked quick."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any("kernels" in str(argument) for argument in config.invocation_params.args):
        return
    here = os.path.dirname(__file__)
    slow = [i for i in items if str(i.path).startswith(here) and i.get_closest_marker("quick") is None]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [i for i in items if i not in slow]
