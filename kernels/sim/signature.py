"""The kernel function that MLX generates around a body, word for word, and how the simulator calls it.

Pinned against mx.fast.metal_kernel's own output by tests/kernels/test_signature.py. Knows nothing of arrays' data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONSTANT_BELOW = 8  # inputs with fewer elements are passed in the constant address space
DTYPES = {  # Metal's name of each MLX dtype
    "bool": "bool",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float16": "float16_t",
    "bfloat16": "bfloat16_t",
    "float32": "float",
}


def _three(value: str) -> str:
    return f"uint3({value}.x, {value}.y, {value}.z)"


# Name, type and the simulator's value of each attribute, in MLX's order.
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": ("uint", "mtl_grid.simdgroups * 8"),
    "dispatch_simdgroups_per_threadgroup": ("uint", "mtl_grid.simdgroups"),
    "dispatch_threads_per_threadgroup": ("uint3", _three("mtl_grid.full_threadgroup_size")),
    "grid_origin": ("uint3", "uint3(0u)"),
    "grid_size": ("uint3", _three("mtl_grid.grid")),
    "quadgroup_index_in_threadgroup": ("uint", "mtl_current->index_in_threadgroup / 4"),
    "quadgroups_per_threadgroup": ("uint", "mtl_grid.simdgroups * 8"),
    "simdgroup_index_in_threadgroup": ("uint", "mtl_current->simdgroup"),
    "simdgroups_per_threadgroup": ("uint", "mtl_grid.simdgroups"),
    "thread_execution_width": ("uint", "32u"),
    "thread_index_in_quadgroup": ("uint", "mtl_current->index_in_threadgroup % 4"),
    "thread_index_in_simdgroup": ("uint", "mtl_current->lane"),
    "thread_index_in_threadgroup": ("uint", "mtl_current->index_in_threadgroup"),
    "thread_position_in_grid": ("uint3", _three("mtl_current->position_in_grid")),
    "thread_position_in_threadgroup": ("uint3", _three("mtl_current->position_in_threadgroup")),
    "threadgroup_position_in_grid": ("uint3", _three("mtl_grid.threadgroup_position")),
    "threadgroups_per_grid": ("uint3", _three("mtl_grid.threadgroups")),
    "threads_per_grid": ("uint3", _three("mtl_grid.grid")),
    "threads_per_simdgroup": ("uint", "32u"),
    "threads_per_threadgroup": ("uint3", _three("mtl_grid.threadgroup_size")),
}


@dataclass(frozen=True)
class ArraySpec:
    name: str
    dtype: str  # MLX's name
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        product = 1
        for n in self.shape:
            product *= n
        return product


@dataclass(frozen=True)
class Binding:
    """One buffer: an input or output, or an input's shape, strides or number of dimensions."""

    array: str
    what: str  # "data", "shape", "strides", "ndim"
    declaration: str  # the parameter, without its buffer attribute
    argument: str  # C++ for the value the simulator passes; {} is the void * of the buffer


TemplateValue = bool | int | str  # a str is a dtype


@dataclass(frozen=True)
class Signature:
    name: str
    declaration: str  # "template <...> [[kernel]] void name(...) {\n"
    instantiation: str  # "<bfloat16_t, 3>", or empty
    bindings: tuple[Binding, ...]
    attributes: tuple[str, ...]

    def text(self, header: str, source: str) -> str:
        """What MLX hands to Metal's compiler, after its own prelude."""
        text = f"{header}{self.declaration}{source}\n}}\n"
        if self.instantiation:
            named = self.name + self.instantiation
            text += f'\ntemplate [[host_name("{self.name}")]] [[kernel]] decltype({named}) {named};\n'
        return text

    def entry(self) -> str:
        """C++ of the function that the runtime calls in each lane."""
        arguments = [b.argument.format(f"buffers[{i}]") for i, b in enumerate(self.bindings)]
        arguments += [ATTRIBUTES[a][1] for a in self.attributes]
        return (
            '#line 1 "entry"\nextern "C" void mtl_entry(void **buffers) {\n'
            f"  {self.name}{self.instantiation}({', '.join(arguments)});\n}}\n"
        )


def _input_bindings(spec: ArraySpec, source: str) -> list[Binding]:
    space = "constant" if spec.elements < CONSTANT_BELOW else "device"
    kind, scalar = DTYPES[spec.dtype], not spec.shape
    bindings = [
        Binding(
            spec.name,
            "data",
            f"const {space} {kind}{'&' if scalar else '*'} {spec.name}",
            f"{'*' if scalar else ''}(const {kind} *){{}}",
        )
    ]
    extras = {
        "shape": ("int* ", "(const int *){}"),
        "strides": ("int64_t* ", "(const int64_t *){}"),
        "ndim": ("int& ", "*(const int *){}"),
    }
    for what, (kind, argument) in extras.items():
        name = f"{spec.name}_{what}"
        if spec.shape and name in source:
            bindings.append(Binding(spec.name, what, f"const constant {kind}{name}", argument))
    return bindings


def _template(template: Sequence[tuple[str, TemplateValue]]) -> tuple[str, str]:
    """The parameters and the arguments."""
    if not template:
        return "", ""
    kinds = {bool: "bool", int: "int", str: "typename"}
    parameters = ", ".join(f"{kinds[type(v)]} {n}" for n, v in template)
    arguments = ", ".join(DTYPES[v] if isinstance(v, str) else str(int(v)) for _, v in template)
    return f"template <{parameters}>\n", f"<{arguments}>"


def generate(
    name: str,
    source: str,
    inputs: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    template: Sequence[tuple[str, TemplateValue]] = (),
    atomic_outputs: bool = False,
) -> Signature:
    """MLX's signature for one call's arrays and template values."""
    bindings = [b for spec in inputs for b in _input_bindings(spec, source)]
    for spec in outputs:
        kind = f"atomic<{DTYPES[spec.dtype]}>" if atomic_outputs else DTYPES[spec.dtype]
        bindings.append(Binding(spec.name, "data", f"device {kind}* {spec.name}", f"({kind} *){{}}"))
    attributes = tuple(a for a in ATTRIBUTES if a in source)
    parameters, arguments = _template(template)
    full = f"custom_kernel_{name}"
    if arguments:
        full += "_" + "_" + arguments[1:-1].replace(", ", "_")
    for spec in inputs:
        full += f"_{DTYPES[spec.dtype]}"
        full += "s" if not spec.shape else "c" if spec.elements < CONSTANT_BELOW else ""
    full += "".join(f"_{DTYPES[spec.dtype]}" for spec in outputs)
    full = full.replace("-", "_")
    lines = [f"  {b.declaration} [[buffer({i})]]" for i, b in enumerate(bindings)]
    lines += [f"  {ATTRIBUTES[a][0]} {a} [[{a}]]" for a in attributes]
    declaration = f"{parameters}[[kernel]] void {full}(\n" + ",\n".join(lines) + ") {\n"
    return Signature(full, declaration, arguments, tuple(bindings), attributes)
