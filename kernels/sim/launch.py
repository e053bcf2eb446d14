"""Launches kernels on the CPU: the callables that stand in for mx.fast.metal_kernel's, and MLX's own kernel functions.

Arrays are MLX's, or numpy's where they lie; a launch is synchronous. The runtime's state is the process's, so a lock
admits one launch at a time.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from kernels.sim import signature
from kernels.sim.arrays import Buffer, aligned, dtype_name, numpy_dtype, span, to_mlx, to_numpy
from kernels.sim.build import Mode, compile_kernel, runtime_library
from kernels.sim.report import BufferCounts, Report

PRELUDE = '#include "mlx/backend/metal/kernels/utils.h"\n'  # as MLX puts before every custom kernel
_READ_ONLY, _UNINITIALISED = 1, 2
_ONE_LAUNCH = threading.Lock()

Grid = tuple[int, int, int]


class Fault(RuntimeError):
    """The sanitiser stopped a launch, or its results are not those of a correct kernel."""


class _Options(ctypes.Structure):
    _fields_ = [("reversed", ctypes.c_uint32), ("threadgroup_limit", ctypes.c_uint32), ("seconds", ctypes.c_double)]


_COUNTS = (
    "simd_operations simd_steps matrix_operations simdgroup_barriers threadgroup_barriers threadgroups simdgroups "
    "lanes threadgroup_memory threadgroup_read threadgroup_written nanoseconds"
).split()


class _Result(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_uint64) for n in _COUNTS),
        ("fault_pc", ctypes.c_uint64),
        ("message", ctypes.c_char * 2048),
    ]


_TRAFFIC = "read written unique_read unique_written lines32 lines128".split()


class _Traffic(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in _TRAFFIC]


@cache
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    library.mtl_buffer_unwritten.restype = ctypes.c_int64
    return library


@cache
def _kernel(path: Path) -> ctypes.CDLL:
    _runtime()
    return ctypes.CDLL(str(path))


def _where(library: Path, pc: int) -> str:
    """Source line of an address in a kernel, when binutils can tell."""
    tool = shutil.which("addr2line")
    if not pc or tool is None:
        return ""
    base = ctypes.cast(_kernel(library)._handle, ctypes.POINTER(ctypes.c_uint64))[0]  # link_map.l_addr
    done = subprocess.run([tool, "-e", str(library), hex(pc - 1 - base)], capture_output=True, text=True, check=False)
    return f" at {Path(done.stdout.split(' ')[0].strip()).name}"


@dataclass(frozen=True)
class Simulator:
    """Options of every launch.

    sanitize: bounds, initialisation, races, divergence and unwritten outputs are faults, and traffic is counted.
    vary: every launch runs again with lanes, simdgroups and threadgroups in reverse order and private memory filled
      otherwise; a difference of one bit is a fault. Only with ``sanitize``.
    seconds: the watchdog's patience.
    on_report: called after every launch.
    """

    sanitize: bool = True
    vary: bool = True
    threadgroup_limit: int = 32 * 1024
    seconds: float = 60.0
    on_report: Callable[[Report], None] | None = None

    def metal_kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: object | None = None,
        *,
        in_place: Sequence[str] = (),
    ) -> Callable[..., list[mx.array]]:
        """mx.fast.metal_kernel. ``in_place`` names inputs that the kernel declares it updates. ``compile_options`` is
        accepted and means nothing here."""
        del compile_options

        def call(
            *,
            inputs: Sequence[mx.array | np.ndarray[Any, Any] | float | int | bool],
            grid: Grid,
            threadgroup: Grid,
            output_shapes: Sequence[Sequence[int]],
            output_dtypes: Sequence[mx.Dtype],
            template: Sequence[tuple[str, Any]] | None = None,
            init_value: float | None = None,
            verbose: bool = False,
            stream: object | None = None,
        ) -> list[mx.array]:
            del stream
            arrays = [x if isinstance(x, mx.array | np.ndarray) else mx.array(x) for x in inputs]
            if ensure_row_contiguous:
                arrays = [mx.contiguous(x) if isinstance(x, mx.array) else np.ascontiguousarray(x) for x in arrays]
            views = {n: to_numpy(x) for n, x in zip(input_names, arrays, strict=True)}
            specs = [
                signature.ArraySpec(n, dtype_name(x.dtype), tuple(x.shape))
                for n, x in zip(input_names, arrays, strict=True)
            ]
            made = [
                signature.ArraySpec(n, dtype_name(d), tuple(s))
                for n, s, d in zip(output_names, output_shapes, output_dtypes, strict=True)
            ]
            values = [(n, dtype_name(v) if isinstance(v, mx.Dtype) else v) for n, v in template or ()]
            sig = signature.generate(name, source, specs, made, values, atomic_outputs)
            if verbose:
                print(f"Generated source code for `{name}`:\n```\n{sig.text(header, source)}\n```")
            outputs = {
                spec.name: aligned(np.full(spec.shape, 0 if init_value is None else init_value, numpy_dtype(d)))
                for spec, d in zip(made, output_dtypes, strict=True)
            }
            buffers = _bind(sig, views, outputs, in_place, init_value is None)
            text = (
                f'{PRELUDE}#line 1 "{name}.metal"\n{header}\n#line 1 "{name}.signature"\n{sig.declaration}'
                f'#line 1 "{name}.body"\n{source}\n}}\n{sig.entry()}'
            )
            self._launch(name, text, buffers, grid, threadgroup)
            for buffer in buffers:
                if buffer.name in in_place and buffer.data is not views[buffer.name]:
                    np.copyto(views[buffer.name], buffer.data)
            return [to_mlx(outputs[n], d) for n, d in zip(output_names, output_dtypes, strict=True)]

        return call

    def function(
        self, source: str, function: str, attributes: Sequence[str], constants: Mapping[str, bool | int] | None = None
    ) -> Callable[[Sequence[Buffer], Grid, Grid], Report]:
        """A kernel function that brings its own signature, such as ``sdpa_vector<half, 64>``: buffers first, then
        ``attributes``. ``constants``: values of its function constants, 0 where not named."""
        values = ", ".join(f"mtl_call::attribute({signature.ATTRIBUTES[a][1]})" for a in attributes)
        text = (
            f'{source}\n#include "mtl/call.h"\nextern "C" void mtl_entry(void **buffers) {{\n'
            f"  mtl_call::call({function}, buffers, {values});\n}}\n"
        )
        name = function.split("<")[0]

        def call(buffers: Sequence[Buffer], grid: Grid, threadgroup: Grid) -> Report:
            return self._launch(name, text, buffers, grid, threadgroup, constants or {})

        return call

    # ------------------------------------------------------------------
    def _launch(
        self,
        name: str,
        text: str,
        buffers: Sequence[Buffer],
        grid: Grid,
        threadgroup: Grid,
        constants: Mapping[str, bool | int] | None = None,
    ) -> Report:
        modes: list[Mode] = (
            ["plain"] if not self.sanitize else ["checked", "checked_zeroed"] if self.vary else ["checked"]
        )
        with ThreadPoolExecutor(len(modes)) as pool:
            libraries = list(pool.map(lambda mode: compile_kernel(text, mode), modes))
        with _ONE_LAUNCH:
            for library in libraries:
                for key, value in (constants or {}).items():
                    kind = ctypes.c_bool if isinstance(value, bool) else ctypes.c_int32
                    kind.in_dll(_kernel(library), key).value = value
            before = [b.data.copy() if b.writable and self.vary and self.sanitize else None for b in buffers]
            report = self._run(name, libraries[0], buffers, grid, threadgroup)
            if len(modes) == 2:
                self._vary(name, libraries, buffers, before, grid, threadgroup)
        if self.on_report is not None:
            self.on_report(report)
        return report

    def _vary(
        self,
        name: str,
        libraries: Sequence[Path],
        buffers: Sequence[Buffer],
        before: Sequence[np.ndarray[Any, Any] | None],
        grid: Grid,
        threadgroup: Grid,
    ) -> None:
        def again(library: Path, backwards: bool) -> str | None:
            copies = [
                Buffer(b.name, b.data if c is None else c.copy(), b.writable, b.uninitialised)
                for b, c in zip(buffers, before, strict=True)
            ]
            self._run(name, library, copies, grid, threadgroup, backwards)
            for first, second in zip(buffers, copies, strict=True):
                if first.writable and first.data.tobytes() != second.data.tobytes():
                    return first.name
            return None

        if (changed := again(libraries[1], True)) is None:
            return
        if again(libraries[0], True) is None:
            raise Fault(f"{name}: {changed} depends on uninitialised private memory")
        raise Fault(f"{name}: {changed} depends on the order of lanes, simdgroups or threadgroups")

    def _run(
        self,
        name: str,
        library: Path,
        buffers: Sequence[Buffer],
        grid: Grid,
        threadgroup: Grid,
        backwards: bool = False,
    ) -> Report:
        if threadgroup[0] * threadgroup[1] * threadgroup[2] > 1024:
            raise Fault(f"{name}: a threadgroup of {threadgroup} threads; the limit is 1024")
        runtime, kernel = _runtime(), _kernel(library)
        names = [b.name.encode() for b in buffers]  # the runtime keeps their addresses until the launch has ended
        for b, text in zip(buffers, names, strict=True):
            if b.writable and b.uninitialised:
                b.data.reshape(-1).view(np.uint8)[:] = 0xFF
            flags = (0 if b.writable else _READ_ONLY) | (_UNINITIALISED if b.uninitialised else 0)
            runtime.mtl_buffer_add(
                ctypes.c_void_p(b.data.ctypes.data),
                ctypes.c_uint64(span(b.data)),
                ctypes.c_char_p(text),
                flags,
                b.data.itemsize,
                int(self.sanitize),
            )
        try:
            pointers = (ctypes.c_void_p * len(buffers))(*(b.data.ctypes.data for b in buffers))
            options = _Options(int(backwards), self.threadgroup_limit, self.seconds)
            result = _Result()
            failed = runtime.mtl_run(
                kernel.mtl_entry, pointers, len(buffers), (ctypes.c_uint32 * 3)(*grid),
                (ctypes.c_uint32 * 3)(*threadgroup), ctypes.byref(options), ctypes.byref(result),
            )  # fmt: skip
            if failed:
                raise Fault(f"{name}: {result.message.decode()}{_where(library, result.fault_pc)}")
            return self._report(name, result, buffers, grid, threadgroup)
        finally:
            runtime.mtl_buffers_clear()

    def _report(self, name: str, result: _Result, buffers: Sequence[Buffer], grid: Grid, threadgroup: Grid) -> Report:
        counts: dict[str, BufferCounts] = {}
        if self.sanitize:
            for i, b in enumerate(buffers):
                traffic = _Traffic()
                _runtime().mtl_buffer_traffic(i, ctypes.byref(traffic))
                counts[b.name] = BufferCounts(b.data.nbytes, *(getattr(traffic, n) for n in _TRAFFIC))
                if b.uninitialised and (missing := _runtime().mtl_buffer_unwritten(i)) >= 0:
                    raise Fault(f"{name}: output {b.name}[{missing // b.data.itemsize}] is never written")
        return Report(name, grid, threadgroup, **{n: getattr(result, n) for n in _COUNTS}, buffers=counts)


def _bind(
    sig: signature.Signature,
    views: Mapping[str, np.ndarray[Any, Any]],
    outputs: Mapping[str, np.ndarray[Any, Any]],
    in_place: Sequence[str],
    uninitialised: bool,
) -> list[Buffer]:
    """A buffer for each binding, in order."""
    buffers = []
    for binding in sig.bindings:
        n = binding.array
        if n in outputs:
            buffers.append(Buffer(n, outputs[n], True, uninitialised))
        elif binding.what == "data":
            buffers.append(Buffer(n, aligned(views[n]), n in in_place))
        else:
            view = views[n]
            values: dict[str, list[int]] = {
                "shape": list(view.shape),
                "strides": [s // view.itemsize for s in view.strides],
                "ndim": [view.ndim],
            }
            data = np.array(values[binding.what], np.int64 if binding.what == "strides" else np.int32)
            buffers.append(Buffer(f"{n}_{binding.what}", data))
    return buffers
