"""One large file of the hub into its cache, continuing where an earlier attempt stopped.

``huggingface_hub`` continues a broken transfer only within one call: a file that is not finished when the program ends
is thrown away. For weights of many gigabytes the part that is there is kept here, beside the finished blobs, and the
blob is put where the library looks for it. Knows nothing of models.
"""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path
from typing import Any

from mlxserve.errors import CheckpointError
from mlxserve.hub.files import RemoteFile, damaged


def fetch_blob(url: str, blob: Path, expected: RemoteFile, progress_bar: Any) -> None:
    """Fetches ``url`` to ``blob`` unless that exists. Raises what the client library raises, and CheckpointError.

    The bytes are checked against ``expected.sha256`` before they get the blob's name.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    assert expected.sha256 is not None
    if blob.exists():
        return
    name = url.rsplit("/", 1)[1]
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{blob.name}.mlxserve-part")
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file is closed
        except BlockingIOError as error:
            raise CheckpointError(f"{name} is being fetched by another process") from error
        if file.tell() > expected.size:
            file.truncate(0)
        http_get(
            url,
            file,
            resume_size=file.tell(),
            headers=build_hf_headers(library_name="mlxserve"),
            expected_size=expected.size,
            displayed_filename=name,
            tqdm_class=progress_bar,
        )
        file.flush()
        with part.open("rb") as whole:
            digest = hashlib.file_digest(whole, "sha256").hexdigest()
        if digest != expected.sha256:
            part.unlink()
            raise damaged(name)
        part.rename(blob)
