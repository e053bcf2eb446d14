"""Decode and prefill speed of the whole engine: scheduler, paged KV and greedy sampling included.

``python -m bench.decode --json``: decode tokens/s at batch 1, 8 and 16 and the prefill of 512 tokens, smollm2-135m on
the torch backend. ``--baseline`` measures transformers' ``generate`` on the same weights in float32, alternating in the
same run. Medians over the rounds; the ratios are what carries over to another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from mlxserve import LLM, SamplingParams
from mlxserve.benchmark.machine import describe

PROMPT_TOKENS = 64
DECODE_TOKENS = 64
PREFILL_TOKENS = 512


def token_ids(count: int, start: int = 0) -> list[int]:
    """A prompt of distinct ordinary tokens; another start gives another prompt."""
    return [100 + (37 * (i + 1) + 101 * start) % 40_000 for i in range(count)]


def decode_rate(llm: LLM, batch: int) -> float:
    """Tokens/s from the moment every sequence has its first token to the end."""
    params = SamplingParams(max_tokens=DECODE_TOKENS, temperature=0, ignore_eos=True)
    for i in range(batch):
        llm.submit(token_ids(PROMPT_TOKENS, i), params)
    produced: dict[str, int] = {}
    started, counted = 0.0, 0
    while llm.core.has_work():
        for delta in llm.core.step():
            produced[delta.request_id] = produced.get(delta.request_id, 0) + len(delta.token_ids)
        if not started and len(produced) == batch:
            started, counted = time.perf_counter(), sum(produced.values())
    return (sum(produced.values()) - counted) / (time.perf_counter() - started)


def prefill_rate(llm: LLM) -> float:
    """Prompt tokens/s until the first token is out."""
    started = time.perf_counter()
    llm.submit(token_ids(PREFILL_TOKENS, 1), SamplingParams(max_tokens=1, temperature=0))
    while llm.core.has_work():
        llm.core.step()
    return PREFILL_TOKENS / (time.perf_counter() - started)


def transformers_arms() -> dict[str, Callable[[], float]]:
    """The same measurements of transformers' generate: static batches, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    from mlxserve.formats.checkpoint import open_checkpoint

    path = open_checkpoint("smollm2-135m").path
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def run(batch: int, prompt: int, tokens: int) -> float:
        ids = torch.tensor([token_ids(prompt, i + 1) for i in range(batch)])
        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
            )
        return time.perf_counter() - started

    def decode(batch: int) -> float:
        return batch * (DECODE_TOKENS - 1) / (run(batch, PROMPT_TOKENS, DECODE_TOKENS) - run(batch, PROMPT_TOKENS, 1))

    arms: dict[str, Callable[[], float]] = {f"decode_{b}": lambda b=b: decode(b) for b in (1, 8, 16)}  # type: ignore[misc]
    arms["prefill_512"] = lambda: PREFILL_TOKENS / run(1, PREFILL_TOKENS, 1)
    return arms


def measure(rounds: int, baseline: bool) -> dict[str, Any]:
    llm = LLM("smollm2-135m", backend="torch", max_model_len=1024, prefix_caching=False)
    arms: dict[str, dict[str, Callable[[], float]]] = {
        "mlxserve": {
            **{f"decode_{b}": lambda b=b: decode_rate(llm, b) for b in (1, 8, 16)},  # type: ignore[misc]
            "prefill_512": lambda: prefill_rate(llm),
        }
    }
    if baseline:
        arms["transformers"] = transformers_arms()
    samples: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    for turn in range(rounds + 1):
        for arm, workloads in arms.items():
            for name, run in workloads.items():
                rate = run()
                if turn:  # the first round warms up
                    samples[arm].setdefault(name, []).append(rate)
    llm.close()
    medians = {
        arm: {name: round(statistics.median(rates), 1) for name, rates in workloads.items()}
        for arm, workloads in samples.items()
    }
    result: dict[str, Any] = {"machine": describe(), "unit": "tokens/s", "rounds": rounds, "medians": medians}
    if baseline:
        ours, theirs = medians["mlxserve"], medians["transformers"]
        result["ratios"] = {name: round(ours[name] / theirs[name], 2) for name in ours}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--baseline", action="store_true", help="measure transformers as well, alternating")
    args = parser.parse_args()
    result = measure(args.rounds, args.baseline)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for arm, rates in result["medians"].items():
        print(arm, "  ".join(f"{name} {rate:.1f} tok/s" for name, rate in rates.items()))


if __name__ == "__main__":
    main()
