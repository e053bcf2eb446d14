import pytest

from mlxserve.engine.stop import finish_reason, length_limit, stop_ids
from mlxserve.errors import BadRequest, ContextLengthExceeded
from mlxserve.types import SamplingParams
from tests.engine.support import request, sequence


def test_stop_ids():
    assert stop_ids(SamplingParams(stop_token_ids=(5,)), (1, 2)) == {1, 2, 5}
    assert stop_ids(SamplingParams(stop_token_ids=(5,), ignore_eos=True), (1, 2)) == {5}


@pytest.mark.parametrize(
    ("token", "limit", "reason"), [(7, 100, None), (7, 3, "length"), (5, 100, "stop"), (5, 3, "stop")]
)
def test_finish_reason(token, limit, reason):
    seq = sequence((3, 4), limit=limit)
    seq.stop_ids = frozenset((5,))
    seq.append(token)
    assert finish_reason(seq, token) == reason


class TestLengthLimit:
    """SCH-01: what can never run to its end is refused, and the sentence names both numbers."""

    def test_what_fits(self):
        assert length_limit(request(prompt=90, max_tokens=10), 100, 200) == 100
        assert length_limit(request(prompt=90), 100, 200) == 100
        assert length_limit(request(prompt=90), 400, 200) == 200
        assert length_limit(request(prompt=100, max_tokens=0), 100, 200) == 100

    @pytest.mark.parametrize(
        ("prompt", "max_tokens", "model", "pool", "names", "param"),
        [
            (90, 11, 100, 200, ("90", "11", "101", "100"), "max_tokens"),
            (90, 11, 200, 100, ("90", "11", "101", "100"), "max_tokens"),
            (101, 0, 100, 200, ("101", "100"), "prompt"),
            (100, None, 100, 200, ("100",), "prompt"),
            (150, None, 400, 100, ("150", "100"), "prompt"),
        ],
    )
    def test_what_does_not(self, prompt, max_tokens, model, pool, names, param):
        with pytest.raises(ContextLengthExceeded) as error:
            length_limit(request(prompt=prompt, max_tokens=max_tokens), model, pool)
        assert all(name in error.value.message for name in names)
        assert ("pool" in error.value.message) == (pool < model)
        assert (error.value.param, error.value.code) == (param, "context_length_exceeded")

    def test_an_empty_prompt(self):
        with pytest.raises(BadRequest, match="empty"):
            length_limit(request(prompt=0), 100, 100)
