"""Equal bits whatever the batch, the chunks and the cache, through the whole engine on torch's own operators.

The C++ operators keep the same promise: ``tests/cpu``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mlxserve import LLM, SamplingParams
from mlxserve.errors import ConfigError
from mlxserve.llm import Completion
from tests.tiny import make_llama

Bits = tuple[tuple[int, ...], tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]
# Wide enough that a product's blocking depends on its rows, and a context of several key blocks.
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
COMPOSITIONS = 200
MODES = (
    {"prefill_chunk": 7, "max_num_seqs": 5, "block_size": 8},
    {"prefill_chunk": 64, "max_num_seqs": 9, "block_size": 16},
    {"prefill_chunk": 200, "max_num_seqs": 3, "block_size": 128, "prefix_caching": False},
)


def bits(one: Completion) -> Bits:
    entries = one.logprobs or ()
    return one.token_ids, tuple(e.logprob for e in entries), tuple(e.top for e in entries)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("deterministic") / "tiny", **SHAPE)


def engine(model: Path, *, deterministic: bool, **mode: object) -> LLM:
    fields = {"kv_blocks": 256, "max_num_batched_tokens": 256, "max_model_len": 400, "cpu_weights": "float32", **mode}
    return LLM(str(model), backend="torch", deterministic=deterministic, **fields)


def asks(rng: random.Random) -> list[tuple[list[int], SamplingParams]]:
    """Prompts with common beginnings, so that the cache serves some."""
    common = [rng.randrange(3, 90) for _ in range(150)]
    made = []
    for i in range(12):
        prompt = common[: rng.choice((0, 16, 70, 150))] + [rng.randrange(3, 90) for _ in range(rng.randint(1, 60))]
        temperature = rng.choice((0.0, 0.8))
        made.append(
            (prompt, SamplingParams(max_tokens=6, temperature=temperature, seed=i, logprobs=3, ignore_eos=True))
        )
    return made


@pytest.fixture(scope="module")
def engines(model: Path) -> Iterator[list[LLM]]:
    with ExitStack() as stack:
        yield [stack.enter_context(engine(model, deterministic=True, **mode)) for mode in MODES]


def test_no_bit_differs_in_200_compositions(engines: list[LLM]) -> None:
    rng = random.Random(3)
    requests = asks(rng)
    alone = [bits(engines[0].generate([prompt], params)[0]) for prompt, params in requests]
    for turn in range(COMPOSITIONS):
        llm = engines[turn % len(engines)]
        chosen = rng.sample(range(len(requests)), rng.randint(1, 5))
        got: dict[str, int] = {llm.submit(*requests[i]): i for i in chosen}
        deltas: dict[str, list[object]] = {request_id: [] for request_id in got}
        while llm.core.has_work():
            for delta in llm.core.step():
                deltas[delta.request_id].append(delta)
        for request_id, i in got.items():
            one = llm._fold(0, 0, deltas[request_id], starts_text=False)  # type: ignore[arg-type]
            assert bits(one) == alone[i], f"request {i} among {chosen} in composition {turn}"


def test_the_plain_operators_would_fail(model: Path) -> None:
    """The control: without the mode, company changes bits."""
    requests = asks(random.Random(3))
    with engine(model, deterministic=False, **MODES[1]) as llm:
        alone = [bits(llm.generate([prompt], params)[0]) for prompt, params in requests]
    with engine(model, deterministic=False, **MODES[0]) as llm:
        ids = [llm.submit(*request) for request in requests]
        deltas = llm._deltas(ids)
        together = [bits(llm._fold(0, 0, deltas[i], starts_text=False)) for i in ids]
    assert together != alone


def test_it_computes_the_same_model(model: Path, engines: list[LLM]) -> None:
    requests = asks(random.Random(5))
    with engine(model, deterministic=False, **MODES[1]) as plain:
        for prompt, params in requests[:6]:
            [want], [got] = plain.generate([prompt], params), engines[1].generate([prompt], params)
            assert got.token_ids == want.token_ids
            assert [e.logprob for e in got.logprobs or ()] == pytest.approx(
                [e.logprob for e in want.logprobs or ()], abs=1e-4
            )


def test_mlx_does_not_promise_it(model: Path) -> None:
    with pytest.raises(ConfigError, match="--deterministic"):
        LLM(str(model), backend="mlx", deterministic=True)
