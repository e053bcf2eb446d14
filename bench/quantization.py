"""What quantising at load leaves of a model: the embedded one, against its own float32 values.

    python -m bench.quantization [--json]

200 positions of a fixed text through the torch backend in float32. For each way of quantising: how many of the five
likeliest tokens stay among the five, how often the likeliest stays so, the Kullback-Leibler divergence in nats, the
bits a weight takes, and the seconds of CPU time that quantising takes. "dense" arms start from float values, as a
checkpoint in bfloat16 does; "file" arms from the Q4_1 file, whose tensors pass where they are small enough already.
"plain" is the grid from the smallest to the largest weight of a group, for comparison.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxserve.backends import get_backend
from mlxserve.backends.batch import host_batch
from mlxserve.benchmark.machine import describe
from mlxserve.engine.interfaces import ForwardBatch
from mlxserve.formats.affine import dequantize
from mlxserve.formats.checkpoint import Checkpoint, open_checkpoint
from mlxserve.formats.quantize import quantized
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor, TensorSource
from mlxserve.loader import load_model
from mlxserve.text.load import load_text

POSITIONS = 200
BLOCK_SIZE = 16
TEXT = """\
The lighthouse at Cape Ferris was built in 1871, after the wreck of the schooner Amelia. Its keeper, a quiet man named
Tobias Wren, kept a diary in which he noted the wind, the price of lamp oil and the birds that struck the glass. On 14
March 1889 he wrote: "Snow from the north-east all night; three ships passed, none in distress."

def fibonacci(n):
    \"\"\"Return the n-th Fibonacci number.\"\"\"
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

To make the dough, mix 500 g of flour with 320 ml of water, 10 g of salt and 7 g of dry yeast. Knead for ten minutes,
let it rise for an hour, then bake at 230 degrees until the crust is golden.

La ville de Lyon se trouve au confluent du Rhône et de la Saône. Elle compte plus de 500 000 habitants.

Q: If a train leaves at 9:40 and arrives at 12:05, how long is the journey?
A: It takes 2 hours and 25 minutes.
"""


class Mapped:
    """A source whose tensors go through ``change``."""

    def __init__(self, source: TensorSource, change: Callable[[str, HostTensor], HostTensor]) -> None:
        self._source = source
        self._change = change
        self.quantization = "none"

    def names(self) -> Collection[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def outline(self, name: str) -> HostTensor:
        return self.read(name)

    def read(self, name: str) -> HostTensor:
        return self._change(name, self._source.read(name))


def dense(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, source=Mapped(checkpoint.source, lambda _, t: DenseTensor(dequantize(t), "float32")))


def plain(bits: int, group_size: int) -> Callable[[str, HostTensor], HostTensor]:
    """Rounding to the grid between a group's extremes; the embedding stays."""

    def change(name: str, tensor: HostTensor) -> HostTensor:
        if len(tensor.shape) < 2 or "embed_tokens" in name:
            return tensor
        groups = dequantize(tensor).reshape(-1, group_size)
        low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
        step = np.where(high > low, (high - low) / (2**bits - 1), 1).astype(np.float32)
        values = np.rint((groups - low) / step) * step + low
        return DenseTensor(values.reshape(tensor.shape), "float32")

    return change


def logits(checkpoint: Checkpoint, ids: list[int]) -> NDArray[np.float32]:
    """[len(ids), vocabulary]"""
    backend = get_backend("torch", "float32")
    model = load_model(checkpoint, backend)
    blocks = -(-len(ids) // BLOCK_SIZE)
    pool = backend.new_pool(model.spec, blocks, BLOCK_SIZE)
    batch = ForwardBatch(
        array("q", ids), array("q", range(len(ids))), array("q", range(len(ids))), array("q", [0, len(ids)]),
        array("q", [len(ids)]), [array("i", range(blocks))], [], [], array("q", range(len(ids))),
    )  # fmt: skip
    out = backend.forward(model.decoder, pool, host_batch(batch, BLOCK_SIZE), None, False)
    return np.from_dlpack(out)


def bits_a_weight(source: TensorSource) -> float:
    """Over all matrices, scales and biases included."""
    nbytes = weights = 0
    for name in source.names():
        tensor = source.outline(name)
        if len(tensor.shape) > 1:
            weights += int(np.prod(tensor.shape))
            parts = [tensor] if isinstance(tensor, DenseTensor) else [tensor.scales, tensor.biases]
            nbytes += sum(part.data.nbytes for part in parts)
            nbytes += tensor.packed.nbytes if isinstance(tensor, AffineTensor) else 0
    return 8 * nbytes / weights


def agreement(found: NDArray[np.float32], true: NDArray[np.float32]) -> dict[str, float]:
    best, other = (np.argsort(-x, axis=1)[:, :5] for x in (true, found))
    log_p, log_q = (x - np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=True) for x in (true, found))
    return {
        "top5": round(float((best[:, :, None] == other[:, None, :]).any(-1).mean()), 4),
        "top1": round(float((best[:, 0] == other[:, 0]).mean()), 4),
        "kl_nats": round(float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    checkpoint = open_checkpoint("smollm2-135m")
    floats = dense(checkpoint)
    ids = load_text(checkpoint.tokenizer).tokenizer.encode(TEXT)[:POSITIONS]
    assert len(ids) == POSITIONS
    true = logits(checkpoint, ids)
    arms: dict[str, Checkpoint] = {
        "plain int4, groups of 64": replace(floats, source=Mapped(checkpoint.source, plain(4, 64))),
        "dense to int4, groups of 64": quantized(floats, 4, 64),
        "dense to int4, groups of 32": quantized(floats, 4, 32),
        "dense to int8, groups of 64": quantized(floats, 8, 64),
        "file to int4, groups of 64": quantized(checkpoint, 4, 64),
        "file to int4, groups of 32": quantized(checkpoint, 4, 32),
    }
    results: dict[str, Any] = {"float32": {"bits_a_weight": 32.0}}
    for label, arm in arms.items():
        start = time.process_time()
        for name in arm.source.names():
            arm.source.read(name)
        seconds = round(time.process_time() - start, 2)
        row = agreement(logits(arm, ids), true)
        if not label.startswith("plain"):
            row["bits_a_weight"] = round(bits_a_weight(arm.source), 2)
        results[label] = row | {"cpu_seconds": seconds}
        if not args.json:
            print(f"{label:30} {results[label]}", flush=True)
    if args.json:
        print(json.dumps({"machine": describe(), "positions": POSITIONS, "results": results}, indent=2))


if __name__ == "__main__":
    main()
