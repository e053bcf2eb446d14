"""How cost grows: decode with the batch and the context, prefill with the length, memory with the blocks, and start-up.

``python -m bench.scale``: smollm2-135m on the torch backend. Each curve comes with its least squares fit, and what the
slope amounts to in bytes or multiplications a second. ``--json`` keeps the figures in bench/results and draws
docs/images/scaling.png, which docs/scaling.md explains.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines import MODEL, run_mlxserve, token_ids
from mlxserve import LLM
from mlxserve.benchmark.machine import describe
from tests.e2e.server import running_server

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "scale.json"
PICTURE = ROOT / "docs" / "images" / "scaling.png"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
BATCH_CONTEXT = 128
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8160)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8160)
BLOCKS = (64, 128, 256, 512)
DECODE_TOKENS = 24
LONGEST = 8192

Points = list[dict[str, float]]


def medians(xs: Sequence[int], measure: Callable[[int], float], rounds: int) -> Points:
    """[{x, y}] with the median of ``rounds`` in turn, after one that warms up."""
    samples: dict[int, list[float]] = {x: [] for x in xs}
    for turn in range(rounds + 1):
        for x in xs:
            y = measure(x)
            if turn:
                samples[x].append(y)
    return [{"x": x, "y": round(statistics.median(ys), 3)} for x, ys in samples.items()]


def decode_ms(llm: LLM, batch: int, context: int) -> float:
    """Of one step, over the DECODE_TOKENS after ``context`` tokens."""
    prompts = [token_ids(context, i) for i in range(batch)]
    return 1e3 * batch / run_mlxserve(llm, prompts, DECODE_TOKENS).decode_rate


def prefill_ms(llm: LLM, length: int) -> float:
    return 1e3 * run_mlxserve(llm, [token_ids(length)], 1).total_s


def start_up(rounds: int) -> list[dict[str, Any]]:
    """Seconds from a command to its first result, each in a new process."""
    load = f"from mlxserve import LLM; LLM({MODEL!r}, backend='torch').close()"
    commands = {
        "import mlxserve": [sys.executable, "-c", "import mlxserve"],
        "load, offline": [sys.executable, "-c", load],
        "generate one token": [sys.executable, "-m", "mlxserve", "generate", "-p", "Hello", "--max-tokens", "1"],
    }
    samples: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            samples.setdefault(name, []).append(time.perf_counter() - started)
        started = time.perf_counter()
        with running_server("--model", MODEL, "--backend", "torch"):
            samples.setdefault("serve, ready", []).append(time.perf_counter() - started)
    return [{"what": name, "seconds": round(statistics.median(found[1:]), 2)} for name, found in samples.items()]


def memory_mib() -> Points:
    """Private resident memory with every block in use, each pool in a new process."""
    points = []
    for blocks in BLOCKS:
        command = [sys.executable, "-m", "bench.memory", "--one", MODEL, str(blocks)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        # Each of the 8 sequences has given its last, partial block back by the time it is asked.
        assert found["blocks_used"] == blocks - 8, found
        points.append({"x": blocks, "y": round(found["filled"] / 2**20, 1)})
    return points


def fit(points: Points, degree: int) -> list[float]:
    """Least squares of relative errors: [constant, slope, ...]."""
    x, y = (np.array([point[axis] for point in points]) for axis in ("x", "y"))
    return [float(f"{c:.4g}") for c in np.polyfit(x, y, degree, w=1 / y)[::-1]]


def measure(rounds: int) -> dict[str, Any]:
    options = {"backend": "torch", "prefix_caching": False, "max_model_len": LONGEST}
    with LLM(MODEL, max_num_seqs=max(BATCHES), **options) as llm:
        batch = medians(BATCHES, lambda n: decode_ms(llm, n, BATCH_CONTEXT), rounds)
        context = medians(CONTEXTS, lambda n: decode_ms(llm, 1, n), rounds)
        prefill = medians(LENGTHS, lambda n: prefill_ms(llm, n), rounds)
        weights = weights_of(llm)
    memory = memory_mib()
    curves = {
        "decode_ms_by_batch": {"points": batch, "fit": (by_batch := fit(batch, 1))},
        "decode_ms_by_context": {"points": context, "fit": (by_context := fit(context, 1))},
        "prefill_ms_by_length": {"points": prefill, "fit": (by_length := fit(prefill, 2))},
        "memory_mib_by_blocks": {"points": memory, "fit": (by_blocks := fit(memory, 1))},
    }
    return {
        "machine": describe(),
        "rounds": rounds,
        "load": round(os.getloadavg()[0], 1),
        "curves": curves,
        "start_up": start_up(rounds),
        "model": weights,
        "slopes": {
            "decode_gmac_per_s_of_one_more_sequence": round(weights["macs_per_token"] / by_batch[1] / 1e6, 1),
            "kv_gb_per_s_of_one_more_token_of_context": round(weights["kv_bytes_per_token"] / by_context[1] / 1e6, 1),
            "prefill_gmac_per_s_of_one_more_token": round(weights["macs_per_token"] / by_length[1] / 1e6, 1),
            "attention_gmac_per_s_of_one_more_pair": round(weights["macs_per_pair"] / by_length[2] / 1e6, 1),
            "kib_of_one_more_block": round(by_blocks[1] * 1024, 1),
            "kib_of_a_block_by_its_shape": weights["kib_per_block"],
        },
    }


def weights_of(llm: LLM) -> dict[str, float]:
    """What a token costs by the model's shape: multiplications with weights, bytes of K and V, and multiplications for
    each pair of a query and a key, of which causal attention has n^2 / 2."""
    from mlxserve.formats.checkpoint import open_checkpoint
    from mlxserve.models.families import model_spec

    spec = model_spec(open_checkpoint(MODEL).config, LONGEST)
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    kv_width = attention.kv_heads * attention.head_dim
    layer = spec.hidden * (2 * attention.q_width + 2 * kv_width + 3 * mlp.width)
    kv_bytes = len(spec.layers) * 2 * kv_width * 4
    return {
        "macs_per_token": len(spec.layers) * layer + spec.hidden * spec.vocab,
        "kv_bytes_per_token": kv_bytes,
        "macs_per_pair": len(spec.layers) * 2 * attention.q_width / 2,
        "kib_per_block": kv_bytes * llm.info.block_size / 1024,
    }


PANELS = (
    ("decode_ms_by_batch", "sequences in the batch", "decode step, ms"),
    ("decode_ms_by_context", "tokens of context, batch 1", "decode step, ms"),
    ("prefill_ms_by_length", "tokens of the prompt", "prefill, ms"),
    ("memory_mib_by_blocks", "KV blocks, all in use", "private memory, MiB"),
)


def plot(path: Path, result: dict[str, Any]) -> None:
    """The curves with their fits, and start-up as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    for panel, (name, x_label, y_label) in zip(axes.flat, PANELS, strict=False):
        curve = result["curves"][name]
        x = np.array([point["x"] for point in curve["points"]])
        line = np.linspace(0, x.max(), 100)
        panel.plot(x, [point["y"] for point in curve["points"]], "o", color="tab:blue")
        panel.plot(line, np.polyval(curve["fit"][::-1], line), "-", color="tab:gray", linewidth=1)
        panel.set(xlabel=x_label, ylabel=y_label, xlim=(0, None), ylim=(0, None))
    names = [one["what"] for one in result["start_up"]]
    bars = axes.flat[4].barh(names, [one["seconds"] for one in result["start_up"]])
    axes.flat[4].bar_label(bars, fmt="%.1f", padding=3)
    axes.flat[4].invert_yaxis()
    axes.flat[4].set(xlabel="start-up, s")
    axes.flat[5].set_axis_off()
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--json", action="store_true", help=f"write {RESULT.name} and {PICTURE.name} as well")
    parser.add_argument("--rounds", type=int, default=3)
    result = measure((args := parser.parse_args()).rounds)
    if args.json:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        plot(PICTURE, result)
    for name, curve in result["curves"].items():
        print(name, *(f"{point['x']}: {point['y']}" for point in curve["points"]), f"fit {curve['fit']}")
    for one in result["start_up"]:
        print(f"{one['what']}: {one['seconds']} s")
    for name, value in result["slopes"].items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
