"""Checkpoint files: what is in them, without any array library's own arrays."""
