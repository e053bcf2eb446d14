"""What the engine's tests share: engines over a FakeRunner, and reading their deltas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlxserve.config import EngineConfig
from mlxserve.engine.core import Engine
from mlxserve.engine.kv_manager import PagedKVManager
from mlxserve.engine.sequence import RequestState, Sequence, make_choices
from mlxserve.types import Delta, FinishReason, Request, SamplingParams, TokenLogprob, Usage
from tests.fakes import FakeRunner, reference

VOCAB = 1000
EOS = (1, 2)
MAX_LEN = 512


def request(request_id: str = "r", prompt: tuple[int, ...] | int = 8, **fields: Any) -> Request:
    """A greedy request unless told otherwise; an int makes a prompt of so many distinct tokens. Fields of Request and
    of SamplingParams mix."""
    of_request = {k: fields.pop(k) for k in list(fields) if k in Request.__dataclass_fields__}
    tokens = tuple(range(10, 10 + prompt)) if isinstance(prompt, int) else prompt
    params = SamplingParams(**{"temperature": 0.0, **fields})
    return Request(request_id=request_id, prompt=tokens, params=params, **of_request)


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(**{"max_num_seqs": 4, "prefill_chunk": 64, "max_num_batched_tokens": 128, **fields})


def make_engine(runner: FakeRunner | None = None, *, max_model_len: int = MAX_LEN, **fields: Any) -> Engine:
    engine_fields = {k: fields.pop(k) for k in list(fields) if k in ("clock", "kv")}
    runner = runner or FakeRunner(vocab_size=VOCAB)
    return Engine(
        runner,
        config(**fields),
        eos_token_ids=EOS,
        max_model_len=max_model_len,
        vocab_size=runner.vocab_size,
        **engine_fields,
    )


def expected(r: Request, index: int = 0, runner: FakeRunner | None = None, limit: int = MAX_LEN) -> tuple[int, ...]:
    runner = runner or FakeRunner(vocab_size=VOCAB)
    limit = min(limit, runner.num_blocks * runner.block_size)
    return reference(r, index, vocab_size=runner.vocab_size, eos_token_ids=EOS, limit=limit)


@dataclass
class Output:
    """Everything one choice got."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    deltas: list[Delta] = field(default_factory=list)

    @property
    def last(self) -> Delta:
        return self.deltas[-1]

    @property
    def reason(self) -> FinishReason | None:
        return self.last.finish_reason

    @property
    def usage(self) -> Usage:
        assert self.last.usage is not None
        return self.last.usage


Outputs = dict[tuple[str, int], Output]


def collect(outputs: Outputs, deltas: list[Delta]) -> None:
    for delta in deltas:
        output = outputs.setdefault((delta.request_id, delta.index), Output())
        assert not output.deltas or output.reason is None, f"{delta} comes after the end"
        output.tokens += delta.token_ids
        output.logprobs += delta.logprobs or ()
        output.deltas.append(delta)


def run(engine: Engine, *requests: Request, steps: int = 10_000) -> Outputs:
    """Adds the requests and steps until nothing is left; checks the pages after every step."""
    outputs: Outputs = {}
    for r in requests:
        engine.add(r)
    for _ in range(steps):
        if not engine.has_work():
            return outputs
        collect(outputs, engine.step())
        engine.kv.check()
    raise AssertionError(f"still at work after {steps} steps")


def sequence(tokens: tuple[int, ...] | int, *, limit: int = 1000, **fields: Any) -> Sequence:
    """A sequence that no scheduler knows, for tests of the KV manager."""
    state = RequestState(request("s", tokens, **fields), arrival_s=0.0)
    return make_choices(state, first_number=0, limit=limit, stop_ids=frozenset())[0]


def compute(kv: PagedKVManager, seq: Sequence) -> int:
    """Does what admission and a finished step do; returns how many tokens were cached."""
    hit = kv.match(seq)
    assert kv.allocate(seq, len(seq.tokens), hit)
    seq.scheduled = seq.computed = len(seq.tokens)
    kv.publish(seq)
    kv.check()
    return hit.tokens
