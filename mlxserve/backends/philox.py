"""Philox4x32-10, the counted random numbers of the sampler (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC11), for any library whose arrays have 64-bit integers: numpy, torch and MLX compute the same words.

The arrays hold 32-bit words in 64-bit integers. Products may wrap as signed numbers: only bits 0 to 63 are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Words = Any  # an array of 64-bit integers, or an int

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """The four random words of each counter. Arrays have one dtype and broadcast; an int stands for as many equals."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) & WORD ^ c1 ^ k0, p1 & WORD, (p0 >> 32) & WORD ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def gumbel(tokens: Ints, position: Ints | int, choice: Ints | int, key0: Ints | int, key1: Ints | int) -> Floats:
    """The noise of each token id, -log(-log(u)) with u = (x0 + 0.5) / 2^32, in float64: u may be within 2^-33 of 1.

    ``key0`` and ``key1`` are the seed's ``key_words``. An int stands for as many equals.
    """
    x0 = philox((_word(tokens), _word(position), _word(choice), 0), (_word(key0), _word(key1)))[0]
    u: Floats = (x0.astype(np.float64) + 0.5) * 2.0**-32
    np.negative(np.log(u, out=u), out=u)
    return np.negative(np.log(u, out=u), out=u)


def _word(values: Ints | int) -> Words:
    return values if isinstance(values, int) else values.astype(np.uint64)


def key_words(seed: int) -> tuple[int, int]:
    """The two words of a 64-bit seed, low word first; a negative seed stands for its two's complement."""
    return seed & WORD, (seed >> 32) & WORD
