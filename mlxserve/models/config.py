"""Reads a config.json strictly: a missing, mistyped or unsupported value is a CheckpointError that names the key.

Knows nothing of particular families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from mlxserve.errors import CheckpointError

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Config:
    """A view of one JSON object. ``path`` is where it lies in config.json, for messages."""

    values: Mapping[str, object]
    path: str = ""

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        """A whole number from 1 to ``most``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(key, value, f"must be a whole number from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, value, "must be a number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "must be true or false")
        return value

    def one_of(self, key: str, choices: Mapping[str, V], default: str | None = None) -> V:
        """The value that ``choices`` gives for the word at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, value, f"must be one of {', '.join(choices)}")
        return choices[value]

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(v, int | float) for v in value):
            raise self.error(key, value, "must be a list of numbers")
        if len(value) != length:
            raise self.error(key, f"a list of {len(value)} numbers", f"must have {length}")
        return tuple(map(float, value))

    def words(self, key: str, length: int) -> tuple[str, ...]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value) or len(value) != length:
            raise self.error(key, value, f"must be a list of {length} words")
        return tuple(value)

    def ints(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty when absent."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(v, int) for v in value):
            raise self.error(key, value, "must be a list of whole numbers")
        return tuple(value)

    def section(self, key: str) -> Config:
        value = self._value(key, None)
        if not isinstance(value, Mapping):
            raise self.error(key, value, "must be an object")
        return Config(value, f"{self.path}{key}.")

    def refuse(self, key: str, allowed: object) -> None:
        """Raises when ``key`` has another value than the only one that is implemented, which is also its default."""
        value = self.values.get(key)
        if value is not None and value != allowed:
            raise self.error(key, value, f"only {allowed!r} is supported")

    def error(self, key: str, value: object, limit: str) -> CheckpointError:
        text = repr(value)
        return CheckpointError(f"config.json: {self.path}{key} is {text[:80]}, but {limit}")

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"config.json: {self.path}{key} is missing")
        return value
