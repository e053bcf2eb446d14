"""Models by their name on the Hugging Face hub."""

from mlxserve.hub.client import Hub, LocalModel, Repository, parse_repository

__all__ = ["Hub", "LocalModel", "Repository", "parse_repository"]
