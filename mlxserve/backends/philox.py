"""Philox4x32-10, the counted random numbers of the sampler (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC11), for any library whose arrays have 64-bit integers: numpy, torch and MLX compute the same words.

The arrays hold 32-bit words in 64-bit integers. Products may wrap as signed numbers: only bits 0 to 63 are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = Any  # an array of 64-bit integers

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """The four random words of each counter. All six arrays have one dtype and broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) & WORD ^ c1 ^ k0, p1 & WORD, (p0 >> 32) & WORD ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def gumbel(seed: int, position: int, choice: int, tokens: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """The noise of each token id: -log(-log(u)), u = (x0 + 0.5) / 2^32. The reference that the backends' tests hold
    theirs against."""
    ids = tokens.astype(np.uint64)
    place, which, zero = (np.full_like(ids, value) for value in (position, choice, 0))
    key = tuple(np.full_like(ids, word) for word in key_words(seed))
    x0 = philox((ids, place, which, zero), (key[0], key[1]))[0]
    u: NDArray[np.float64] = (x0.astype(np.float64) + 0.5) / 2**32
    return -np.log(-np.log(u))


def key_words(seed: int) -> tuple[int, int]:
    """The two words of a 64-bit seed, low word first; a negative seed stands for its two's complement."""
    return seed & WORD, (seed >> 32) & WORD
