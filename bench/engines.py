"""Engines that can be compared on this machine, each in a process of its own: ours, transformers and llama.cpp.

``python -m bench.engines NAME`` reads one job a line from stdin, ``{"prompts": [[token ids]...], "tokens": N}``,
answers it greedily with exactly N tokens a prompt, and writes the job's ``Timing`` as a line of JSON. All run the
weights of smollm2-135m; ``EngineProcess`` is the other end of the pipe.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from mlxserve import LLM, SamplingParams

MODEL = "smollm2-135m"
MAX_SEQUENCES = 32
CONTEXT = 1024  # tokens a sequence at most, prompt and answer
PROMPT_TOKENS = 64
DECODE_TOKENS = 64
PREFILL_TOKENS = 512

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Timing:
    """One job, from its submission on."""

    first_s: float  # when every sequence had its first token
    produced: int  # tokens there were by then
    total_s: float
    tokens: int  # in all

    @property
    def decode_rate(self) -> float:
        """Tokens/s once all sequences decode."""
        return (self.tokens - self.produced) / (self.total_s - self.first_s)


Run = Callable[[Prompts, int], Timing]


def token_ids(count: int, start: int = 0) -> list[int]:
    """A prompt of distinct ordinary tokens; another start gives another prompt."""
    return [100 + (37 * (i + 1) + 101 * start) % 40_000 for i in range(count)]


def run_mlxserve(llm: LLM, prompts: Prompts, tokens: int) -> Timing:
    """The whole engine: scheduler, paged KV, sampling."""
    started = time.perf_counter()
    for prompt in prompts:
        llm.submit(prompt, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
    seen: dict[str, int] = {}
    first_s, produced = 0.0, 0
    while llm.core.has_work():
        for delta in llm.core.step():
            seen[delta.request_id] = seen.get(delta.request_id, 0) + len(delta.token_ids)
        if not produced and len(seen) == len(prompts):
            first_s, produced = time.perf_counter() - started, sum(seen.values())
    return Timing(first_s, produced, time.perf_counter() - started, sum(seen.values()))


def decode_rate(llm: LLM, batch: int) -> float:
    """Tokens/s of ``batch`` sequences."""
    return run_mlxserve(llm, [token_ids(PROMPT_TOKENS, i) for i in range(batch)], DECODE_TOKENS).decode_rate


def prefill_rate(llm: LLM) -> float:
    """Prompt tokens/s until the first token is out."""
    return PREFILL_TOKENS / run_mlxserve(llm, [token_ids(PREFILL_TOKENS)], 1).total_s


def open_mlxserve(**options: Any) -> Run:
    """Without the prefix cache: the rounds repeat their prompts."""
    limits = {"max_model_len": CONTEXT, "max_num_seqs": MAX_SEQUENCES, "prefix_caching": False}
    llm = LLM(MODEL, backend="torch", **limits, **options)
    return lambda prompts, tokens: run_mlxserve(llm, prompts, tokens)


def open_plain() -> Run:
    """Torch's own operators in float32: what a machine without a compiler runs."""
    return open_mlxserve(cpu_weights="float32")


def open_transformers() -> Run:
    """``generate`` in float32 over one static batch, padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM

    from mlxserve.formats.checkpoint import open_checkpoint

    path = open_checkpoint(MODEL).path
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def run(prompts: Prompts, tokens: int) -> Timing:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        steps: list[float] = []

        def note(ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            """Called after each token; never asks to stop."""
            steps.append(time.perf_counter())
            return torch.zeros(len(ids), dtype=torch.bool)

        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[note],
            )
        total_s = time.perf_counter() - started
        assert len(steps) == tokens, "generate ended early"
        return Timing(steps[0] - started, len(prompts), total_s, len(prompts) * tokens)

    return run


def open_llama_cpp() -> Run:
    """``llama_decode`` with one token of each sequence a call, after their prompts one by one."""
    from mlxserve.benchmark.llama_cpp import LlamaCpp
    from mlxserve.formats.checkpoint import open_checkpoint

    path = open_checkpoint(MODEL).path

    def run(prompts: Prompts, tokens: int) -> Timing:
        with LlamaCpp(path, len(prompts), max(map(len, prompts)) + tokens) as llama:
            started = time.perf_counter()
            last = {sequence: llama.start(sequence, prompt) for sequence, prompt in enumerate(prompts)}
            first_s = time.perf_counter() - started
            for _ in range(tokens - 1):
                last = llama.step(last)
            total_s = time.perf_counter() - started
        return Timing(first_s, len(prompts), total_s, len(prompts) * tokens)

    return run


ENGINES: dict[str, tuple[str, Callable[[], Run]]] = {  # name: (its library, how to open it)
    "mlxserve": ("torch", open_mlxserve),
    "mlxserve, plain torch": ("torch", open_plain),
    "llama.cpp": ("llama_cpp", open_llama_cpp),
    "transformers": ("transformers", open_transformers),
}


def missing(engine: str) -> str | None:
    """What this machine lacks for an engine; None when it can run."""
    library = ENGINES[engine][0]
    return None if importlib.util.find_spec(library) else f"needs the library {library}"


class EngineProcess:
    """An engine in its process. Idle it only waits on its pipe, so another one can be measured meanwhile."""

    def __init__(self, engine: str) -> None:
        command = [sys.executable, "-m", "bench.engines", engine]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, prompts: Prompts, tokens: int) -> Timing:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self._process.args!r} ended with {self._process.wait()}"
        return Timing(**json.loads(line))

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not mix with the answers
    run = ENGINES[parser.parse_args().engine][1]()
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(asdict(run(job["prompts"], job["tokens"]))), file=out, flush=True)


if __name__ == "__main__":
    main()
