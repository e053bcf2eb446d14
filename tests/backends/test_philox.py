"""Counted noise: the published answers of Philox4x32-10, and the distribution made from it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from mlxserve.backends.mlx.sampler import gumbel as mlx_gumbel
from mlxserve.backends.philox import gumbel, key_words, philox
from mlxserve.backends.sampling import Noise

# Random123's known-answer tests for philox4x32, 10 rounds: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
ARRAYS = {
    "numpy": lambda word: np.array([word], np.uint64),
    "torch": lambda word: torch.tensor([word], dtype=torch.int64),
    "mlx": lambda word: mx.array([word], mx.uint64),
}


@pytest.mark.parametrize("library", ARRAYS)
@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(
    library: str, counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    array = ARRAYS[library]
    c0, c1, c2, c3 = map(array, counter)
    k0, k1 = map(array, key)
    assert tuple(int(w.item()) for w in philox((c0, c1, c2, c3), (k0, k1))) == words


def noise(seed: int, position: int, choice: int) -> Noise:
    low, high = key_words(seed)
    ints = {"key0": low, "key1": high, "positions": position, "choices": choice, "rows": 0, "top_k": 100}
    floats = {"temperature": 1.0, "min_p": 0.0}
    return Noise(
        **{name: np.array([v], np.int64) for name, v in ints.items()},
        **{name: np.array([v], np.float32) for name, v in floats.items()},
        top_p=np.array([1.0]),
    )


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
def test_mlx_draws_the_same_noise(seed: int) -> None:
    n, tokens = noise(seed, 1000, 3), np.arange(50_000)
    want = gumbel(tokens, 1000, 3, *key_words(seed))
    alike = gumbel(tokens, *(np.full(len(tokens), a[0]) for a in n.counter))
    np.testing.assert_array_equal(alike, want)
    counter = [mx.array(a.astype(np.uint64))[:, None] for a in n.counter]
    np.testing.assert_allclose(np.array(mlx_gumbel(counter, len(tokens)))[0], want, rtol=2e-6, atol=2e-6)


def test_the_largest_noise_is_finite_in_float32() -> None:
    """u rounds to 1 in float32 for the 128 highest words; the noise must come from 1 - u there."""
    x0 = mx.array([2**32 - 1], mx.uint64)
    rest = ((0xFFFFFFFF - x0).astype(mx.float32) + 0.5) * 2.0**-32
    assert float(-mx.log(-mx.log1p(-rest))) == pytest.approx(-np.log(2.0**-33), rel=1e-6)


def test_the_noise_is_gumbel() -> None:
    values = gumbel(np.arange(200_000), 0, 0, 7, 0)
    assert values.mean() == pytest.approx(0.57722, abs=0.01)
    assert values.var() == pytest.approx(np.pi**2 / 6, abs=0.03)


def test_every_part_of_the_counter_and_the_seed_matters() -> None:
    ids = np.arange(100)
    draws = [
        gumbel(ids, p, c, *key_words(s)) for s, p, c in ((1, 0, 0), (2, 0, 0), (1 + 2**32, 0, 0), (1, 1, 0), (1, 0, 1))
    ]
    assert len({d.tobytes() for d in draws}) == len(draws)
