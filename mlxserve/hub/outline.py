"""A checkpoint's outline on disk: files with the headers and sizes of the real ones, and holes where the data would be.

A few kilobytes of a model's many gigabytes are fetched, and everything that reads a checkpoint's headers works on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_outline(path: Path, tensors: Mapping[str, Any]) -> None:
    """``tensors``: name to what has dtype, shape and data_offsets, as the hub's library reads them from a header."""
    header = {
        name: {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": list(tensor.data_offsets)}
        for name, tensor in tensors.items()
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data are aligned
    end = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)  # a hole takes no room on the disk
