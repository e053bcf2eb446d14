"""The page at ``/``: a chat, and a live view of the engine. Static files and one stream; no build step.

It knows no engine and no model: the page speaks the same HTTP as every other client.
"""

from mlxserve.api.web.live import Live, SnapshotSource
from mlxserve.api.web.pages import routes

__all__ = ["Live", "SnapshotSource", "routes"]
