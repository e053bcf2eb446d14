"""What a request for text asks for, once it has been checked: prompts, and the form of the answer.

Knows nothing of sockets.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from mlxserve.api.events import Job
from mlxserve.api.frames import Shape, UsageFrames
from mlxserve.api.schemas import Sampling
from mlxserve.api.service import Service
from mlxserve.errors import BadRequest

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer to be made."""

    answer_id: str
    jobs: tuple[Job, ...]
    shape: Shape
    stream: bool
    ignored: tuple[str, ...]


# Checks a body, which arrived at a time of time.monotonic(), and prepares its answer; runs in a thread of the pool.
# Raises MlxserveError.
Planner = Callable[[Service, bytes, float], Plan]


def answer_id(body: Sampling, prefix: str) -> str:
    """The client's own ``request_id``, else a new one. Raises BadRequest when it could not stand in a header."""
    if body.request_id is None:
        return f"{prefix}-{uuid.uuid4().hex}"
    if not _REQUEST_ID.fullmatch(body.request_id):
        raise BadRequest(
            "request_id must be 1 to 128 letters, digits, dots, colons, dashes and underscores", param="request_id"
        )
    return body.request_id


def usage_frames(body: Sampling) -> UsageFrames:
    """Where a stream carries its usage. Raises BadRequest for stream_options without stream."""
    if body.stream_options is None:
        return "final"
    if not body.stream:
        raise BadRequest("stream_options is allowed only when stream is true", param="stream_options")
    return "extra" if body.stream_options.include_usage else "none"


def now() -> int:
    """Seconds since the epoch, as ``created`` has them."""
    return int(time.time())
