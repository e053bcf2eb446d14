"""mlxserve: a native inference engine for Apple Silicon, with an OpenAI-compatible server.

``from mlxserve import LLM`` is the offline API; ``mlxserve serve`` the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxserve.errors import MlxserveError
from mlxserve.types import SamplingParams

if TYPE_CHECKING:
    from mlxserve.llm import LLM, Completion

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "MlxserveError", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    # The composition root loads a backend's libraries; importing the package alone must stay quick.
    if name in ("LLM", "Completion"):
        from mlxserve import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
