"""Type-checks a kernel's text with clang and real address spaces: what the simulator, which erases them, cannot see.

Clang's C-style casts may drop a space where Metal's may not, so a pattern looks for those. Knows nothing of running.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernels.sim import signature
from kernels.sim.arrays import dtype_name
from kernels.sim.factory import Source
from kernels.sim.rewrite import TOKEN, declaration_end, is_attribute, is_significant

_HEADER = Path(__file__).parent / "lint" / "metal_lint.h"
# Any machine's clang can target arm64, whose half is a type that computes.
_FLAGS = ["-std=c++17", "-fsyntax-only", "-ffreestanding", "--target=aarch64-linux-gnu", "-march=armv8.2-a+fp16", "-w"]
_SCALARS = "float|half|bfloat|char|uchar|short|ushort|int|uint|long|ulong|bool"
_VECTOR = re.compile(rf"(?<![\w:])((?:metal::)?(?:(?:{_SCALARS})[234]|vec<[^<>;(){{}}]*>))\s*\(")
_SPACELESS_CAST = re.compile(rf"\(\s*(?:const\s+)?(?:(?:{_SCALARS})[234]?|T|vec<[^<>]*>|u?int\d+_t)\s*\*\s*\)")


class LintError(RuntimeError):
    """The text breaks Metal's rules of address spaces."""


@cache
def find_clang() -> str | None:
    names = ["clang++", *(f"clang++-{v}" for v in range(22, 13, -1))]
    return next((path for name in names if (path := shutil.which(name))), None)


def with_address_spaces(text: str) -> str:
    """Metal as clang's C++: threadgroup variables become static, vector constructors calls."""
    tokens = TOKEN.findall(text)
    out: list[str] = []
    previous = ";"
    for i, token in enumerate(tokens):
        if token == "threadgroup":
            memory = previous in (";", "{", "}", ")") and declaration_end(tokens, i + 1) is not None
            out.append("static lint_threadgroup" if memory else "lint_threadgroup")
        elif not is_attribute(token) and not token.startswith("#include"):
            out.append(token)
        if is_significant(token):
            previous = token
    return _VECTOR.sub(r"metal::construct<\1>(", "".join(out))


def check(text: str) -> None:
    """Raises LintError with clang's messages. The text is what MLX would hand to Metal's compiler."""
    clang = find_clang()
    if clang is None:
        raise LintError("the address-space lint needs clang")
    if (cast := _SPACELESS_CAST.search(text)) is not None:
        raise LintError(f"a pointer cast without an address space: {cast.group(0)}")
    source = f'#include "{_HEADER}"\nusing namespace metal;\n{with_address_spaces(text)}'
    done = subprocess.run([clang, *_FLAGS, "-x", "c++", "-"], input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LintError(done.stderr)


def linted(source: Source) -> Callable[..., list[mx.array]]:
    """A kernel factory: each call checks the text of its variant and returns zeros."""

    def call(
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
    ) -> list[mx.array]:
        del grid, threadgroup
        specs = [
            signature.ArraySpec(n, dtype_name(x.dtype), tuple(x.shape))
            for n, x in zip(source.inputs, inputs, strict=True)
        ]
        made = [
            signature.ArraySpec(n, dtype_name(d), s)
            for n, d, s in zip(source.outputs, output_dtypes, output_shapes, strict=True)
        ]
        values = [(n, dtype_name(v) if isinstance(v, mx.Dtype) else v) for n, v in template]
        check(signature.generate(source.name, source.body, specs, made, values).text(source.header, source.body))
        return [mx.zeros(s, d) for s, d in zip(output_shapes, output_dtypes, strict=True)]

    return call
