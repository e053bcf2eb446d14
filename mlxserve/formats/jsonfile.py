"""JSON files beside a checkpoint, read with a bound on their size. Knows no schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlxserve.errors import CheckpointError

MAX_BYTES = 2**27  # the largest tokenizer.json in use are about 2**25


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file. Raises CheckpointError naming the file if there is none that can be read."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(f"{path} has {size} bytes, but may have {MAX_BYTES}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is truncated or corrupt: it is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def read_json_if_present(path: Path) -> dict[str, Any]:
    """As ``read_json``; an empty object when there is no such file."""
    return read_json(path) if path.exists() else {}
