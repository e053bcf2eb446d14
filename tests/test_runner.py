"""The runner on tiny models: steps that overlap, copied pages, failures, memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mlxserve.backends import get_backend
from mlxserve.config import EngineConfig
from mlxserve.engine.interfaces import ForwardBatch, PageCopy, Pending, SampleInputs, SampleRow, ScoreRow
from mlxserve.errors import ConfigError
from mlxserve.loader import load_model
from mlxserve.runner import DeviceRunner, device_thread, pool_blocks
from mlxserve.types import SamplingParams
from tests.models.harness import BACKENDS
from tests.tiny import LLAMA, MemoryCheckpoint

CONFIG = EngineConfig(kv_blocks=64, block_size=4, max_num_seqs=4)
GREEDY = SamplingParams(temperature=0)
PROMPTS = [[5, 17, 203, 44, 91, 8], [120, 3, 77], [9]]


@pytest.fixture(params=BACKENDS)
def runner(request: pytest.FixtureRequest) -> Iterator[DeviceRunner[Any, Any]]:
    runner = make_runner(request.param)
    yield runner
    runner.close()


def make_runner(name: str, config: EngineConfig = CONFIG) -> DeviceRunner[Any, Any]:
    backend = get_backend(name, "float32")  # type: ignore[arg-type]
    device = device_thread()
    model = device.submit(load_model, MemoryCheckpoint(LLAMA), backend).result()
    return DeviceRunner(model, backend, device, config)


def table(sequence: int) -> array[int]:
    return array("i", range(63 - 8 * sequence, 55 - 8 * sequence, -1))


def batch(chunks: Sequence[tuple[int, Sequence[int]]], tables: Sequence[array[int]] | None = None) -> ForwardBatch:
    """chunks: (tokens before, tokens) of sequences 0, 1, ...; logits of each chunk's last token."""
    b = ForwardBatch(*(array("q") for _ in range(3)), array("q", [0]), array("q"), [], [], [], array("q"))
    for s, (start, tokens) in enumerate(chunks):
        blocks = tables[s] if tables else table(s)
        b.tokens.extend(tokens)
        b.positions.extend(range(start, start + len(tokens)))
        b.slots.extend(blocks[p // 4] * 4 + p % 4 for p in range(start, start + len(tokens)))
        b.query_starts.append(len(b.tokens))
        b.context_lens.append(start + len(tokens))
        b.block_tables.append(blocks)
        b.logit_rows.append(len(b.tokens) - 1)
    return b


def inputs(*positions: int, params: SamplingParams = GREEDY) -> SampleInputs:
    return SampleInputs([SampleRow(i, params, 11, p, 0) for i, p in enumerate(positions)])


def launch(runner: DeviceRunner[Any, Any], b: ForwardBatch, prev: Pending | None = None) -> Any:
    forward = runner.forward(b, prev)
    forward.start()
    return forward


def step(runner: DeviceRunner[Any, Any], b: ForwardBatch, params: SamplingParams = GREEDY) -> list[int]:
    return [t for (t,) in runner.sample(launch(runner, b), inputs(*b.context_lens, params=params)).wait().tokens]


def one_by_one(runner: DeviceRunner[Any, Any], params: SamplingParams, count: int) -> list[list[int]]:
    """Sequential generation: every step waits for the one before."""
    out = [[t] for t in step(runner, batch([(0, p) for p in PROMPTS]), params)]
    for i in range(count - 1):
        chunks = [(len(p) + i, o[-1:]) for p, o in zip(PROMPTS, out, strict=True)]
        for o, token in zip(out, step(runner, batch(chunks), params), strict=True):
            o.append(token)
    return out


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_p=0.9)])
def test_overlapped_steps_give_the_same_tokens(runner: DeviceRunner[Any, Any], params: SamplingParams) -> None:
    """Step N+1 is launched with N's tokens still unknown, in an order that changes."""
    want = one_by_one(runner, params, 8)
    order = [0, 1, 2]
    pending = runner.sample(launch(runner, batch([(0, p) for p in PROMPTS])), inputs(6, 3, 1, params=params))
    out: list[list[int]] = [[], [], []]
    for i in range(7):
        previous, order = order, [order[-1], *order[:-1]]
        lengths = [len(PROMPTS[s]) + i for s in order]
        following = batch([(n, [0]) for n in lengths], [table(s) for s in order])
        following.late_tokens = [(at, previous.index(s)) for at, s in enumerate(order)]
        forward = launch(runner, following, pending)
        for s, (token,) in zip(previous, pending.wait().tokens, strict=True):
            out[s].append(token)
        pending = runner.sample(forward, inputs(*(n + 1 for n in lengths), params=params))
    for s, (token,) in zip(order, pending.wait().tokens, strict=True):
        out[s].append(token)
    assert out == want


def test_everything_is_read_before_forward_and_sample_return(runner: DeviceRunner[Any, Any]) -> None:
    want = step(runner, batch([(0, PROMPTS[0])]))
    b = batch([(0, PROMPTS[0])])
    b.block_tables = [array("i", table(0))]
    forward = runner.forward(b, None)
    for values in (b.tokens, b.positions, b.slots, b.query_starts, b.context_lens, b.block_tables[0], b.logit_rows):
        values[0] = 1
    forward.start()
    late = inputs(6)
    pending = runner.sample(forward, late)
    late.rows.clear()
    assert [t for (t,) in pending.wait().tokens] == want


def test_a_fork_samples_one_row_twice_and_copies_its_page(runner: DeviceRunner[Any, Any]) -> None:
    parent, child = table(0), array("i", table(0))
    forward = launch(runner, batch([(0, PROMPTS[0])]))
    rows = [SampleRow(0, SamplingParams(), seed, 6, 0) for seed in (1, 2)]
    (first,), (second,) = runner.sample(forward, SampleInputs(rows)).wait().tokens
    want = [step(runner, batch([(0, [*PROMPTS[0], token])], [array("i", range(8))])) for token in (first, second)]
    child[1] = 20  # the page that both would write
    both = batch([(6, [first]), (6, [second])], [parent, child])
    both.page_copies = [PageCopy(parent[1], 20)]
    assert step(runner, both) == [want[0][0], want[1][0]]


def test_a_step_that_samples_nothing_writes_its_pages(runner: DeviceRunner[Any, Any]) -> None:
    want = step(runner, batch([(0, PROMPTS[0])]))
    chunk = batch([(0, PROMPTS[0][:5])])
    del chunk.logit_rows[:]
    done = runner.sample(launch(runner, chunk), SampleInputs([])).wait()
    assert (done.tokens, done.errors) == ([], {})
    assert step(runner, batch([(5, PROMPTS[0][5:])])) == want


def test_scores_of_a_prompt(runner: DeviceRunner[Any, Any]) -> None:
    b = batch([(0, PROMPTS[0])])
    b.logit_rows = array("q", range(6))
    scores = [ScoreRow(i, token, 2) for i, token in enumerate(PROMPTS[0][1:])]
    result = runner.sample(launch(runner, b), SampleInputs([SampleRow(5, GREEDY, 0, 6, 0)], scores)).wait()
    assert [s.token_id for s in result.scores] == PROMPTS[0][1:]
    assert all(s.logprob <= s.top[0][1] for s in result.scores)
    assert result.tokens == [(step(runner, batch([(0, PROMPTS[0])]))[0],)]


def test_a_failure_is_raised_to_who_waits_and_ends_nothing_else() -> None:
    """A token id that the model does not have: torch refuses it."""
    runner = make_runner("torch")
    want = step(runner, batch([(0, PROMPTS[0])]))
    bad = runner.sample(launch(runner, batch([(0, [5000])])), inputs(1))
    after = batch([(0, [0])])
    after.late_tokens = [(0, 0)]
    worse = runner.sample(launch(runner, after, bad), inputs(1))
    for pending in (bad, worse):
        with pytest.raises(IndexError):
            pending.wait()
    assert step(runner, batch([(0, PROMPTS[0])])) == want
    runner.close()


def test_close_is_idempotent(runner: DeviceRunner[Any, Any]) -> None:
    runner.close()
    runner.close()


class TestMemory:
    def test_torch_takes_pages_when_they_are_touched(self) -> None:
        def resident() -> int:
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * 4096

        before = resident()
        runner = make_runner("torch", replace(CONFIG, kv_blocks=2**17))  # 768 MiB
        step(runner, batch([(0, PROMPTS[0])]))
        assert resident() - before < 200 * 2**20
        runner.close()

    def test_mlx_grows_by_what_is_used_and_never_copies_the_pool(self) -> None:
        import mlx.core as mx

        runner = make_runner("mlx", replace(CONFIG, kv_blocks=2**17))
        assert mx.get_active_memory() < 200 * 2**20
        far = array("i", [20_000] * 8)
        step(runner, batch([(0, PROMPTS[0])], [far]))  # grows to 20001 blocks of 6 KiB
        base = mx.get_active_memory()
        mx.reset_peak_memory()
        tokens = runner.sample(launch(runner, batch([(6, [1])], [far])), inputs(7))
        for i in range(7, 12):
            b = batch([(i, [0])], [far])
            b.late_tokens = [(0, 0)]
            forward = launch(runner, b, tokens)
            tokens.wait()
            tokens = runner.sample(forward, inputs(i + 1))
        tokens.wait()
        one_layer = 20_001 * 4 * 2 * 16 * 4
        assert mx.get_peak_memory() - base < one_layer / 4
        held = runner._pool.k[0][0:1]  # the check can fail: whoever holds the pool has it copied
        step(runner, batch([(12, [1])], [far]))
        assert mx.get_peak_memory() - base > one_layer
        del held
        runner.close()


class TestPoolSize:
    class Memory:
        def __init__(self, free: int) -> None:
            self.free = free

        def free_memory(self) -> int:
            return self.free

        def bytes_per_block(self, spec: object, block_size: int) -> int:
            return 1000

    def blocks(self, free: int, config: EngineConfig) -> int:
        backend = get_backend("torch", "float32")
        spec = load_model(MemoryCheckpoint(LLAMA), backend).spec
        return pool_blocks(spec, self.Memory(free), config)  # type: ignore[arg-type]

    def test_a_share_of_the_free_memory(self) -> None:
        assert self.blocks(100_000, EngineConfig(max_num_seqs=4)) == 60
        assert self.blocks(100_000, EngineConfig(max_num_seqs=4, memory_utilization=0.2)) == 20

    def test_no_more_than_the_sequences_can_use(self) -> None:
        assert self.blocks(10**12, EngineConfig(max_num_seqs=4)) == 4 * 512 // 16

    def test_as_asked(self) -> None:
        assert self.blocks(0, EngineConfig(kv_blocks=77)) == 77

    def test_too_little_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="--kv-blocks is 6"):
            self.blocks(10_000, EngineConfig(max_num_seqs=4))

    def test_bytes_of_a_block(self) -> None:
        backend = get_backend("torch", "float16")
        spec = load_model(MemoryCheckpoint(LLAMA), backend).spec
        assert backend.bytes_per_block(spec, 16) == 3 * 2 * 2 * 16 * 16 * 2  # layers, K and V, heads, D, tokens, bytes
