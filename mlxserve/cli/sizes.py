"""Sizes for people to read."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a number above one, to about three digits."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    if count >= 10 * MIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / MIB:.2f} MiB" if count >= MIB / 100 else f"{count / KIB:.1f} KiB"
