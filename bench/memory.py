"""What ``mlxserve plan`` predicts beside what a load really takes with its pool filled, on the torch backend.

``python -m bench.memory --json``: smollm2-135m and a random half-billion llama in bfloat16, each loaded in a process of
its own whose private resident memory is read once every block has been in use. The files' own pages, which the system
may take back at any time, are not counted. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlxserve.benchmark.machine import describe

MODELS = ("smollm2-135m", "random-0.5b")
BLOCKS = {"smollm2-135m": 256, "random-0.5b": 160}
HALF_BILLION = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 64000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def half_billion(directory: Path) -> Path:
    """Random bfloat16 weights in Hugging Face form. The same megabyte of noise is used again and again."""
    import numpy as np

    from tests.tiny import make_tokenizer, write_json

    c = HALF_BILLION
    h, inter, kv, vocab = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * 64, c["vocab_size"]
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [vocab, h], "lm_head.weight": [vocab, h]}
    shapes["model.norm.weight"] = [h]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        rows = {"q_proj": [h, h], "k_proj": [kv, h], "v_proj": [kv, h], "o_proj": [h, h]}
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in rows.items()}
        rows = {"gate_proj": [inter, h], "up_proj": [inter, h], "down_proj": [h, inter]}
        shapes |= {f"{layer}mlp.{name}.weight": shape for name, shape in rows.items()}
        shapes |= {f"{layer}{name}_layernorm.weight": [h] for name in ("input", "post_attention")}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    floats = np.random.default_rng(0).normal(scale=0.03, size=2**19).astype(np.float32)
    noise = (floats.view(np.uint32) >> 16).astype("<u2")
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(end // noise.nbytes):
            file.write(noise.tobytes())
        file.write(noise.tobytes()[: end % noise.nbytes])
    write_json(directory / "config.json", c)
    make_tokenizer(directory)
    return directory


def private_bytes() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


def measure(model: str, blocks: int) -> dict[str, Any]:
    """In this process, which must be fresh: the prediction, then the load, then every block used."""
    from mlxserve.config import EngineConfig, ModelConfig
    from mlxserve.formats.checkpoint import open_checkpoint
    from mlxserve.llm import LLM, choose_backend
    from mlxserve.planning import fit, footprint
    from mlxserve.types import SamplingParams

    engine = EngineConfig(kv_blocks=blocks, max_num_seqs=8, max_model_len=1024)
    checkpoint = open_checkpoint(model)
    config = ModelConfig(model=model, backend="torch")
    backend = choose_backend(checkpoint, config, engine)
    plan = footprint(checkpoint, backend, engine)
    predicted = fit(plan, 2**40, engine)
    before = private_bytes()
    llm = LLM.from_config(config, engine)
    loaded = private_bytes()
    length = blocks * engine.block_size // engine.max_num_seqs - 8
    prompts = [[100 + (37 * j + 101 * i) % 150 for j in range(length)] for i in range(engine.max_num_seqs)]
    llm.generate(prompts, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    used = llm.core.stats().kv_blocks_used
    filled = private_bytes()
    llm.close()
    return {
        "model": Path(model).name,
        "libraries": before,
        "loaded": loaded,
        "filled": filled,
        "blocks": blocks,
        "blocks_used": used,
        "predicted": predicted.total_bytes,
        "predicted_weights": plan.weights.total,
        "predicted_pool": predicted.pool_bytes,
        "predicted_activations": plan.activation_bytes,
        "ratio": round(predicted.total_bytes / filled, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # what a child process measures
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for model in args.model:
            path = str(half_billion(Path(directory))) if model == "random-0.5b" else model
            child = [sys.executable, "-m", "bench.memory", "--one", path, str(BLOCKS[model])]
            result = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE).stdout)
            results.append({**result, "model": model})
    if args.json:
        print(json.dumps({"machine": describe(), "results": results}, indent=1))
        return
    for r in results:
        predicted, used = r["predicted"] / 2**20, r["filled"] / 2**20
        print(f"{r['model']:14} predicted {predicted:6.0f} MiB, used {used:6.0f} MiB: {r['ratio']}")


if __name__ == "__main__":
    main()
