"""Attention over pages against float64, and bits that neither batch nor chunks nor stale pages change."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from mlxserve.backends.torch.native.library import Library
from tests.cpu.operators import Attention

CASES = {
    "smollm": Attention(9, 3, 64, 16, [(1, 1), (1, 130), (1, 128), (1, 129), (40, 40), (17, 200), (5, 150)]),
    "one head, one key a block": Attention(4, 4, 16, 1, [(7, 7), (1, 40)]),
    "all heads share, half rotated": Attention(8, 1, 128, 32, [(33, 70), (1, 9)], rotary=64),
    "80 wide, large blocks": Attention(8, 2, 80, 64, [(33, 170), (1, 65)], rotary=32),
    "256 wide, no rope": Attention(4, 2, 256, 16, [(20, 40), (1, 77)], rotary=0),
    "window across spans": Attention(6, 2, 32, 8, [(40, 140), (1, 200), (20, 300)], window=50),
    "window in a tile, soft cap, sinks": Attention(
        6, 2, 32, 8, [(40, 140), (1, 200)], window=7, soft_cap=3.0, sinks=torch.linspace(-2, 3, 6)
    ),
    "norm a head": Attention(4, 2, 32, 4, [(20, 30), (1, 50)], head_norm=1),
    "norm of all heads": Attention(4, 2, 32, 4, [(20, 30), (1, 50)], head_norm=2),
}


@pytest.mark.parametrize("name", CASES)
def test_against_float64(library: Library, name: str) -> None:
    case = CASES[name]
    first = [(s, 0, c - n) for s, (n, c) in enumerate(case.sequences) if c > n]
    if first:
        case.run(library, first)
    found = case.run(library, [(s, c - n, c) for s, (n, c) in enumerate(case.sequences)])
    for s, (n, _) in enumerate(case.sequences):
        wanted = case.expected(s)[-n:]
        assert (found[s] - wanted).abs().max() < 2e-5, s
    # What was not written is as it was.
    assert case.k.isnan().any() or case.block_size == 1


@pytest.mark.parametrize("option", ["window", "soft_cap", "sinks", "rotary"])
def test_a_wrong_option_shows(library: Library, option: str) -> None:
    """The comparison can fail: each option changes the result by more than its tolerance."""
    case = Attention(6, 2, 32, 8, [(30, 30)], window=7, soft_cap=3.0, sinks=torch.ones(6))
    (found,) = case.run(library, [(0, 0, 30)])
    assert (found - case.expected(0)).abs().max() < 2e-5
    setattr(case, option, {"window": 8, "soft_cap": 3.1, "sinks": None, "rotary": 16}[option])
    assert (found - case.expected(0)).abs().max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"window": 45}, {"window": 150, "soft_cap": 4.0}])
def test_bits_do_not_depend_on_chunks_or_batch(library: Library, options: dict[str, float]) -> None:
    length = 290

    def fresh() -> Attention:
        return Attention(9, 3, 64, 16, [(1, length), (1, 75), (1, 300)], **options)  # type: ignore[arg-type]

    (whole,) = fresh().run(library, [(0, 0, length)])
    for cuts in ([0, 1, 17, 18, 128, 129, 200, length], [0, 90, 91, 92, 93, length], [0, 288, 289, length]):
        case = fresh()
        parts = [case.run(library, [(0, a, b)])[0] for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole), cuts
    case = fresh()
    case.run(library, [(0, 0, 280), (2, 0, 299)])
    beside = [case.run(library, [(1, t - 280, t - 279), (0, t, t + 1)])[1] for t in range(280, length)]
    assert torch.equal(torch.cat(beside), whole[280:])


def test_a_broken_neighbour_harms_nobody(library: Library) -> None:
    case = Attention(4, 2, 32, 8, [(1, 40), (1, 40)])
    case.history[1].fill_(torch.nan)
    found = case.run(library, [(0, 0, 40), (1, 0, 40)])
    assert (found[0] - case.expected(0)).abs().max() < 2e-5
    assert found[1].isnan().all()
