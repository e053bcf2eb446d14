"""The MLX backend with the Metal kernels, simulated, against its own reference operators, in float32."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kernels.sim.build import CompileError, find_compiler
from mlxserve.backends.mlx.backend import MlxBackend
from mlxserve.backends.mlx.kernel_backend import KernelBackend, make_backend
from mlxserve.backends.mlx.kernel_source import BuiltKernel, KernelSource, simulated
from mlxserve.backends.mlx.kernels import Kernels
from mlxserve.backends.mlx.variants import Rule, Variants
from mlxserve.config import EngineConfig, KVWrite, MetalConfig
from mlxserve.errors import ConfigError
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor
from mlxserve.runner import DeviceRunner, device_thread
from tests.models.harness import MODES, Logits, Model, difference
from tests.test_runner import GREEDY, batch, inputs, launch
from tests.tiny import LLAMA, Arrays, MemoryCheckpoint, llama_weights


def _no_simulator() -> str | None:
    if sys.platform != "linux":
        return "the kernel simulator runs on Linux"
    try:
        find_compiler()
    except CompileError as error:
        return str(error)
    return None


pytestmark = pytest.mark.skipif(_no_simulator() is not None, reason=_no_simulator() or "")

TOLERANCE = 1e-4  # of the largest logit
CONFIG = {**LLAMA, "hidden_size": 128, "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 2}
PROMPTS = [np.random.default_rng(n).integers(3, 280, n).tolist() for n in (21, 13, 9)]
LAYERS = 2


def quantized(weights: Arrays, bits: int = 4) -> dict[str, Any]:
    def one(w: Any) -> HostTensor:
        packed, scales, biases = (np.array(a) for a in mx.quantize(mx.array(w), 32, bits))
        return AffineTensor(packed, DenseTensor(scales, "float32"), DenseTensor(biases, "float32"), bits, 32)

    return {name: one(w) if w.ndim == 2 else w for name, w in weights.items()}


def checkpoint(bits: int = 4, **over: Any) -> MemoryCheckpoint:
    config = {**CONFIG, **over}
    return MemoryCheckpoint(config, quantized(llama_weights(config), bits))


class Launches:
    """Counts launches of a simulated kernel by name; ``spoil`` doubles what one of them gives."""

    def __init__(self, spoil: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._build = simulated()
        self._spoil = spoil

    def __call__(self, source: KernelSource) -> BuiltKernel:
        built = self._build(source)

        def call(**arguments: Any) -> list[mx.array]:
            self.counts[source.name] += 1
            out = built(**arguments)
            return [2 * a for a in out] if source.name == self._spoil else out

        return call


def backend(
    launches: Launches, kv_write: KVWrite = "scatter", variants: Variants | None = None
) -> Callable[[], KernelBackend]:
    config = MetalConfig(kernels="sim", kv_write=kv_write)
    return lambda: KernelBackend("float32", Kernels(launches), variants or Variants(), config)


def run(ckpt: MemoryCheckpoint, make: Callable[[], MlxBackend], mode: str) -> list[Logits]:
    return Model(ckpt, make(), block_size=8).logits(PROMPTS, mode)


def reference() -> MlxBackend:
    return MlxBackend("float32")


@pytest.mark.parametrize("kv_write", ["scatter", "inplace"])
@pytest.mark.parametrize("mode", MODES)
def test_logits_are_the_references(mode: str, kv_write: KVWrite) -> None:
    launches, ckpt = Launches(), checkpoint()
    assert difference(run(ckpt, backend(launches, kv_write), mode), run(ckpt, reference, mode)) < TOLERANCE
    if mode == "decode":
        writes = launches.counts["kv_write"], launches.counts["qk_norm_rope"]
        assert (min(writes), max(writes)) == (0, LAYERS * len(PROMPTS[0]))
        assert (launches.counts["kv_write"] > 0) == (kv_write == "inplace")


@pytest.mark.parametrize("kernel", ["qmv_int4", "qk_norm_rope", "paged_attention_decode"])
def test_a_wrong_kernel_would_be_seen(kernel: str) -> None:
    ckpt = checkpoint()
    wrong = run(ckpt, backend(Launches(spoil=kernel)), "decode")
    assert difference(wrong, run(ckpt, reference, "decode")) > 100 * TOLERANCE


FORMS: dict[str, tuple[MemoryCheckpoint, dict[str, bool]]] = {
    "8 bits": (checkpoint(bits=8), {"qmv_int4": True, "paged_attention_decode": True}),
    "6 bits": (checkpoint(bits=6), {"qmv_int4": False, "paged_attention_decode": True}),
    "dense": (
        MemoryCheckpoint(CONFIG, llama_weights(CONFIG)),
        {"qmv_int4": False, "paged_attention_decode": True},
    ),
    "biases": (checkpoint(attention_bias=True, mlp_bias=True), {"qmv_int4": True}),
    "a head of 32": (checkpoint(head_dim=32), {"qmv_int4": True, "paged_attention_decode": False}),
    "exact gelu": (checkpoint(hidden_act="gelu"), {"qmv_int4": True}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_the_kernels_cover_or_not(form: str) -> None:
    ckpt, ran = FORMS[form]
    launches = Launches()
    assert difference(run(ckpt, backend(launches), "decode"), run(ckpt, reference, "decode")) < TOLERANCE
    assert {name: launches.counts[name] > 0 for name in ran} == ran


def test_the_table_decides() -> None:
    """A file's rules instead of those built in: here none of the kernels."""
    launches, ckpt = Launches(), checkpoint()
    rules = (Rule(kernel="product", variant="mlx"), Rule(kernel="attention", variant="mlx"))
    got = run(ckpt, backend(launches, variants=Variants(rules)), "decode")
    assert not launches.counts
    assert difference(got, run(ckpt, reference, "decode")) == 0


@pytest.fixture(params=["scatter", "inplace"])
def runner(request: pytest.FixtureRequest) -> Iterator[DeviceRunner[Any, Any]]:
    yield from _runner(backend(Launches(), request.param)())


def _runner(device_backend: MlxBackend) -> Iterator[DeviceRunner[Any, Any]]:
    from mlxserve.loader import load_model

    config = EngineConfig(kv_blocks=64, block_size=8, max_num_seqs=4)
    device = device_thread()
    model = device.submit(load_model, checkpoint(), device_backend).result()
    made = DeviceRunner(model, device_backend, device, config)
    yield made
    made.close()


def _tokens(runner: DeviceRunner[Any, Any], count: int) -> list[int]:
    """Greedy, each step begun before the one before has given its token."""
    prompt = PROMPTS[2]
    b = _scaled(batch([(0, prompt)]), 0)
    pending = runner.sample(launch(runner, b), inputs(len(prompt)))
    out: list[int] = []
    for i in range(1, count):
        following = _scaled(batch([(len(prompt) + i - 1, [0])]), len(prompt) + i - 1)
        following.late_tokens = [(0, 0)]
        forward = launch(runner, following, pending)
        out += [t for (t,) in pending.wait().tokens]
        pending = runner.sample(forward, inputs(len(prompt) + i, params=GREEDY))
    return out + [t for (t,) in pending.wait().tokens]


def _scaled(b: Any, start: int) -> Any:
    """The batch's slots for blocks of 8 instead of 4."""
    blocks = b.block_tables[0]
    for i in range(len(b.slots)):
        position = start + i
        b.slots[i] = blocks[position // 8] * 8 + position % 8
    return b


def test_overlapped_steps_through_the_runner(runner: DeviceRunner[Any, Any]) -> None:
    """Warmed first, as a server is; what the warm-up wrote is not seen."""
    (plain,) = [_tokens(r, 12) for r in _runner(reference())]
    assert _tokens(runner, 12) == plain


def _lazy(source: KernelSource) -> BuiltKernel:
    """In a kernel's place: one node of the graph with the kernel's inputs and outputs, as it is on a GPU."""

    def call(*, inputs: Any, output_shapes: Any, output_dtypes: Any, **_: Any) -> list[mx.array]:
        made = [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        mx.eval(made)
        return list(mx.depends(made, list(inputs)))

    return call


# Of contiguous arrays, and a broadcast to the shape that it has already: no launch.
VIEWS = {"Reshape", "Squeeze", "ExpandDims", "Broadcast"}


def _graph(layers: int, kv_write: KVWrite, context: int, path: Path) -> Counter[str]:
    """The primitives of one decode step of three sequences over split contexts."""
    device = KernelBackend("float32", Kernels(_lazy), Variants(), MetalConfig(kernels="sim", kv_write=kv_write))
    model = Model(checkpoint(num_hidden_layers=layers, max_position_embeddings=1024), device, block_size=8)
    pool = device.new_pool(model.loaded.spec, 96, 8)
    seen: list[mx.array] = []

    def decoder(step: Any) -> mx.array:
        seen.append(model.loaded.decoder(step))
        mx.export_to_dot(str(path), seen[0])
        return seen[0]

    device._step(decoder, pool, sequences=3, queries=1, context=context)
    return Counter(re.findall(r'label ="([A-Za-z]+)"', path.read_text()))


@pytest.mark.parametrize("context", [600, 601], ids=["a block ends", "a block begins"])
@pytest.mark.parametrize(("kv_write", "kernels", "scatters"), [("scatter", 7, 2), ("inplace", 7, 0)])
def test_launches_a_layer(kv_write: KVWrite, kernels: int, scatters: int, context: int, tmp_path: Path) -> None:
    """In the graph that MLX would run: what one layer more adds to it."""
    two, three = (_graph(n, kv_write, context, tmp_path / f"{n}.dot") for n in (2, 3))
    added = {name: n for name, n in (three - two).items() if name not in VIEWS}
    assert added == {"Depends": kernels, **({"Scatter": scatters} if scatters else {})}


def test_kernels_without_a_gpu_are_refused() -> None:
    with pytest.raises(ConfigError, match="MLXSERVE_KERNELS is on, but MLX finds no GPU"):
        make_backend("float32", MetalConfig(kernels="on"))
    with pytest.raises(ConfigError, match="--wired-limit"):
        make_backend("float32", replace(MetalConfig(), wired_limit=1.0))
    assert type(make_backend("float32", MetalConfig(kernels="auto"))) is MlxBackend
