"""The function that MLX generates around each kernel is, word for word, the simulator's.

MLX prints it while exporting a graph, which needs no GPU. In a process of its own: MLX writes to the C stdout.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernels.sim import signature

# A kernel with everything a signature can have: scalars, small inputs, shapes, strides, all kinds of template values.
PROBE = """
import mlx.core as mx
SOURCE = "uint i = thread_position_in_grid.x; out[i] = T(alpha_shape[0] + beta_ndim + gamma_in + alpha_strides[0])"
SOURCE += " + simdgroup_index_in_threadgroup + threads_per_threadgroup.x;"
kernel = mx.fast.metal_kernel("probe", ["alpha", "beta", "gamma_in", "delta"], ["out", "more"], SOURCE, "// header\\n")
def f(alpha, beta, delta):
    return kernel(
        inputs=[alpha, beta, 2.5, delta],
        template=[("T", mx.bfloat16), ("N", 3), ("B", True), ("M", -4)],
        grid=(64, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(8,), (2,)],
        output_dtypes=[mx.float16, mx.int64],
        verbose=True,
    )
"""
EXPORT = """
import os, tempfile
with tempfile.TemporaryDirectory() as work:
    mx.export_function(os.path.join(work, "graph"), {function}, {arguments})
"""

# Our kernels through our own loader: mx.fast.metal_kernel on one side, the simulator's text on the other.
OURS = """
import mlx.core as mx
from mlxserve.backends.mlx.kernels import Heads, Kernels, PackedWeight, RmsNorm, Rotary
from mlxserve.backends.mlx.page_plan import make_plan
from kernels.sim import signature
from kernels.sim.arrays import dtype_name

def spec(name, x): return signature.ArraySpec(name, dtype_name(x.dtype), tuple(x.shape))

def factory(source):
    from mlxserve.backends.mlx.kernel_source import metal
    built = metal(source)
    def call(**options):
        ours = signature.generate(
            source.name, source.body, [spec(n, x) for n, x in zip(source.inputs, options["inputs"])],
            [signature.ArraySpec(n, dtype_name(d), tuple(s))
             for n, d, s in zip(source.outputs, options["output_dtypes"], options["output_shapes"])],
            [(n, dtype_name(v) if isinstance(v, mx.Dtype) else v) for n, v in options["template"]])
        print("OURS<" + ours.text(source.header, source.body) + ">OURS", flush=True)
        return built(**options, verbose=True)
    return call

kernels, f16 = Kernels(factory), mx.float16
plan = make_plan([[0], [1, 2]], [5, 40], [0, 1, 3], 16)
norm, heads = RmsNorm(mx.ones((64,), f16), 1e-5), Heads(2, 1, 64)
rotary = Rotary(mx.ones((32,)))
w = PackedWeight(mx.zeros((16, 8), mx.uint32), mx.zeros((16, 1), f16), mx.zeros((16, 1), f16), 4, 64)

def f(x, q, pages, qkv, ids):
    return [
        kernels.qmv(x, w, norm=norm),
        kernels.qmv(x, w, act="silu"),
        kernels.attention(q, pages, pages, plan, scale=0.125),
        *kernels.qk_norm_rope(qkv, ids, rotary, heads, (norm, norm)),
        *kernels.kv_write(qkv, ids, rotary, heads, None, ids, pages, pages, ids),
    ]
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def generated(output: str) -> list[str]:
    """What MLX printed, one text a kernel call."""
    return [part.split("```\n")[1].strip() for part in output.split("Generated source code")[1:]]


@pytest.mark.quick
def test_everything_a_signature_can_have() -> None:
    arguments = "mx.zeros((4, 8), mx.float16), mx.zeros((3,), mx.int32), mx.array(3, mx.uint32)"
    (theirs,) = generated(run(PROBE + EXPORT.format(function="f", arguments=arguments)))
    scope: dict[str, str] = {}
    exec(PROBE.split("kernel =")[0].replace("import mlx.core as mx", ""), scope)
    inputs = [
        ("alpha", "float16", (4, 8)),
        ("beta", "int32", (3,)),
        ("gamma_in", "float32", ()),
        ("delta", "uint32", ()),
    ]
    ours = signature.generate(
        "probe",
        scope["SOURCE"],
        [signature.ArraySpec(*i) for i in inputs],
        [signature.ArraySpec("out", "float16", (8,)), signature.ArraySpec("more", "int64", (2,))],
        [("T", "bfloat16"), ("N", 3), ("B", True), ("M", -4)],
    )
    assert ours.text("// header\n", scope["SOURCE"]).strip() == theirs


def test_our_kernels() -> None:
    arguments = (
        "mx.zeros((3, 64), f16), mx.zeros((3, 2, 64), f16), mx.zeros((3, 1, 16, 64), f16), mx.zeros((2, 256), f16), "
        "mx.zeros((8,), mx.int32)"
    )
    output = run(OURS + EXPORT.format(function="f", arguments=arguments))
    ours = [part.split(">OURS")[0].strip() for part in output.split("OURS<")[1:]]
    assert len(ours) == 6
    assert ours == generated(output)
