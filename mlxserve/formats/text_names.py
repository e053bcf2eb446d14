"""Which tensors of a checkpoint are its text model's, and their names without a multimodal wrapper's prefix."""

from __future__ import annotations

import re

# The other parts of a multimodal checkpoint.
_NOT_TEXT = re.compile(r"(model\.)?(vision_tower|vision_model|multi_modal_projector|audio_tower|visual)\..*")


def is_text(stored: str) -> bool:
    return _NOT_TEXT.fullmatch(stored) is None


def text_name(stored: str) -> str:
    """``language_model.model.X``, ``model.language_model.X`` and the like as ``model.X``; other names unchanged."""
    for prefix in ("model.language_model.", "language_model."):
        if stored.startswith(prefix):
            rest = stored.removeprefix(prefix)
            return rest if rest.startswith(("model.", "lm_head")) else f"model.{rest}"
    return stored
