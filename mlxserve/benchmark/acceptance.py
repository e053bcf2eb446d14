"""The six acceptance criteria, measured through the offline API on a real model.

Each function returns a figure; what it must reach is said beside it. Knows nothing of how results are shown.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mlxserve.benchmark.prompts import words
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.llm import LLM
from mlxserve.types import SamplingParams

PARALLEL = 8
SEQUENCES = 32
SHARED_TOKENS = 1000
POSITIONS = 200
TEXT = (
    "The lighthouse keeper wrote in his journal every evening. On the third of March he noted a storm from the west, "
    "two ships in the strait, and a leak in the roof of the store room. In 1843 the first cable was laid; it broke "
    "within a year. def area(r): return 3.14159 * r ** 2 gives the area of a circle in Python, and SELECT name FROM "
    "towns WHERE people > 1000 ORDER BY name lists the larger towns. Water boils at 100 degrees Celsius at sea level, "
    'but at 90 degrees on a mountain of three thousand metres. "Where did you put the lamp?" she asked. "Under the '
    'stairs," he said, "where it has always been." The committee met on Tuesday and agreed on four points: the price '
    "of bread, the repair of the bridge, the opening hours of the library, and the colour of the benches in the park."
)


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of the report."""

    number: int
    name: str
    value: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def seeded_equal(llm: LLM) -> float:
    """Share of seeded answers that are the same alone and among neighbours, cold and warm. Must be 1."""
    params = [SamplingParams(max_tokens=24, temperature=0.9, seed=seed) for seed in range(4)]
    prompts = [f"Tell me something about the number {seed}." for seed in range(4)]
    alone = [llm.generate([p], s)[0].token_ids for p, s in zip(prompts, params, strict=True)]
    ids = [llm.submit(p, s) for p, s in zip(prompts, params, strict=True)]
    ids += [llm.submit(words_of(i, 20), SamplingParams(max_tokens=30)) for i in range(4)]
    together = collect(llm)
    return sum(together[i] == list(a) for i, a in zip(ids, alone, strict=False)) / len(alone)


def parallel_ratio(llm: LLM) -> float:
    """Throughput of eight requests at once over that of the same one at a time. At least 1.5; the aim is 4."""
    params = SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)
    prompts = [words_of(100 + i, 48) for i in range(PARALLEL)]
    start = time.perf_counter()
    for prompt in prompts:
        llm.generate([prompt], params)
    serial = time.perf_counter() - start
    others = [words_of(200 + i, 48) for i in range(PARALLEL)]
    start = time.perf_counter()
    llm.generate(others, params)
    return serial / (time.perf_counter() - start)


def warm_ratio(llm: LLM) -> float:
    """Time to first token with a shared prompt of 1,000 tokens cached, over that without. At most 0.25."""
    ratios = []
    for turn in range(3):
        shared = token_ids(SHARED_TOKENS, turn)
        cold = _ttft(llm, [*shared, 11, 12, 13])
        warm = _ttft(llm, [*shared, 21, 22, 23])
        ratios.append(warm / cold)
    return sorted(ratios)[1]


def wasted_blocks(llm: LLM) -> float:
    """Blocks that 32 sequences of 1 to 512 tokens hold beyond the sum of ceil(length / block size): the most in any
    step while all of them run. Must be 0."""
    block = llm.info.block_size
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    for i in range(SEQUENCES):
        llm.submit(token_ids(1 + i * 511 // (SEQUENCES - 1), 50 + i), params)
    wasted = []
    while llm.core.has_work():
        llm.core.step()
        held = llm.core.snapshot()
        if len(held.running) == SEQUENCES:
            exact = sum(-(-(one.prompt_tokens + one.generated_tokens) // block) for one in held.running)
            wasted.append(held.stats.kv_blocks_used - held.stats.kv_blocks_cached - exact)
    return max(wasted, key=abs)


def top5_agreement(reference: LLM, other: LLM) -> float:
    """Mean share of common tokens in the two top-5 sets over 200 positions of a fixed text."""
    ids = reference.text.completion_prompt(TEXT)[: POSITIONS + 1]
    assert len(ids) == POSITIONS + 1, f"the text has {len(ids)} tokens"
    one, two = (_top5(llm, ids) for llm in (reference, other))
    return sum(len(a & b) / 5 for a, b in zip(one, two, strict=True)) / POSITIONS


def measure(model: ModelConfig) -> list[Criterion]:
    """All but the second criterion, which needs another engine: the test suite holds it against transformers."""
    with LLM.from_config(model, EngineConfig(max_num_seqs=32, max_model_len=2048)) as llm:
        llm.generate([words_of(0, 16)], SamplingParams(max_tokens=4))
        found = [
            Criterion(1, "seeded answers equal alone and batched", seeded_equal(llm), 1.0, True),
            Criterion(3, "8 at once over one at a time", parallel_ratio(llm), 1.5, True),
            Criterion(4, "warm over cold time to first token", warm_ratio(llm), 0.25, False),
        ]
    with LLM.from_config(model, EngineConfig(max_num_seqs=32, max_model_len=2048, prefix_caching=False)) as llm:
        found.append(Criterion(5, "blocks beyond the sum of ceil(length / block)", wasted_blocks(llm), 0.0, False))
    return found


def _top5(llm: LLM, ids: Sequence[int]) -> list[set[int]]:
    [scored] = llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=5))
    assert scored.prompt_logprobs is not None
    return [{token for token, _ in entry.top[:5]} for entry in scored.prompt_logprobs if entry is not None]


def _ttft(llm: LLM, prompt: Sequence[int]) -> float:
    start = time.perf_counter()
    llm.submit(prompt, SamplingParams(max_tokens=1, temperature=0))
    while llm.core.has_work():
        if any(delta.token_ids for delta in llm.core.step()):
            break
    first = time.perf_counter() - start
    collect(llm)
    return first


def collect(llm: LLM) -> dict[str, list[int]]:
    """Steps until nothing is left to do; the tokens of each request's first choice."""
    tokens: dict[str, list[int]] = {}
    while llm.core.has_work():
        for delta in llm.core.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    return tokens


def token_ids(count: int, start: int) -> list[int]:
    """A prompt of ordinary tokens; another start gives another prompt from the first token on."""
    return [100 + (37 * (i + 1) + 1009 * (start + 1)) % 40_000 for i in range(count)]


def words_of(seed: int, count: int) -> str:
    return words(random.Random(seed), count)
