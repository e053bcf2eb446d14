"""Which files of a hub repository a model needs, and whether those on disk are whole. Transfers nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import COMPANION_FILES, TEMPLATE_DIRECTORY
from mlxserve.formats.jsonfile import read_json
from mlxserve.formats.safetensors import INDEX, SINGLE

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_OTHER_WEIGHTS = {
    ".gguf": "download one and name that file",
    ".bin": "that is pickle, which can run code when read",
    ".pth": "that is pickle, which can run code when read",
}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """``sha256`` is there for large files; ``git_id`` is the SHA-1 of "blob ", the size, a NUL and the bytes."""

    size: int
    sha256: str | None
    git_id: str


def small_files(files: Collection[str]) -> list[str]:
    """Those among a repository's files that a model needs beside its weights."""
    wanted = {"config.json", INDEX, *COMPANION_FILES}
    return [name for name in files if name in wanted or fnmatchcase(name, f"{TEMPLATE_DIRECTORY}/*.jinja")]


def is_complete(directory: Path) -> bool:
    """Whether a model's directory has all it needs, by names alone."""
    names = {path.name for path in directory.iterdir() if path.exists()}  # not a link whose file is gone
    if "config.json" not in names or not names.intersection(_TOKENIZERS):
        return False
    if INDEX in names:
        return _shards(directory / INDEX) <= names
    return any(name.endswith(".safetensors") for name in names)


def weight_files(model: object, directory: Path, files: Mapping[str, RemoteFile]) -> list[str]:
    """The weight files to fetch: those that the index, already in ``directory``, lists, or else the single one."""
    if INDEX in files:
        shards = sorted(_shards(directory / INDEX))
        missing = [name for name in shards if name not in files]
        if missing or not shards:
            raise CheckpointError(f"{model}: its {INDEX} lists files that it does not have: {', '.join(missing)}")
        return shards
    single = [name for name in files if name.endswith(".safetensors") and "/" not in name]
    if SINGLE in single or len(single) == 1:
        return [SINGLE] if SINGLE in single else single
    for suffix, advice in _OTHER_WEIGHTS.items():
        other = sorted(name for name in files if name.endswith(suffix))
        if other:
            raise CheckpointError(f"{model} has no weights in safetensors form, only {other[0]}: {advice}")
    raise CheckpointError(f"{model} has no weights: neither {SINGLE} nor {INDEX}")


def verify(path: Path, expected: RemoteFile) -> None:
    """For a small file: raises CheckpointError, and takes it out of the cache, unless it is what was announced."""
    data = path.read_bytes()
    if hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == expected.git_id:
        return
    path.resolve().unlink()
    path.unlink(missing_ok=True)  # the link in the snapshot, where the cache has links
    raise damaged(path.name)


def damaged(name: str) -> CheckpointError:
    return CheckpointError(f"{name} was damaged on its way and has been removed; run the command again")


def _shards(index: Path) -> set[str]:
    places = read_json(index).get("weight_map")
    return {str(name) for name in places.values()} if isinstance(places, dict) else set()
