"""The one step between preprocessed Metal and C++: what no macro can express.

A declaration ``threadgroup T name[...];`` becomes memory that the threadgroup's lanes share; any other ``threadgroup``
is dropped, as are attributes; a floating literal without a suffix gets ``f``, for Metal has no double.
Knows nothing of compilers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = re.compile(
    r"""(?m:^\#[^\n]*)              # a line marker of the preprocessor
      | //[^\n]* | /\*.*?\*/
      | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
      | \[\[.*?\]\]                 # an attribute (or an index of an index, told apart below)
      | \.?\d(?:[eEpP][+-]|[\w.])*
      | [A-Za-z_]\w* | \s+ | .""",
    re.S | re.X,
)
_FLOATING = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_ATTRIBUTE = re.compile(r"\[\[\s*[A-Za-z_]")
_FIRST_NAME = re.compile(r"^(.*?)([A-Za-z_]\w*)\s*((?:\[.*\])?)\s*$", re.S)
_NEXT_NAME = re.compile(r"^\s*(\w+)\s*((?:\[.*\])?)\s*$", re.S)


class RewriteError(ValueError):
    """A use of ``threadgroup`` that the simulator cannot place."""


def is_attribute(token: str) -> bool:
    return token.startswith("[[") and _ATTRIBUTE.match(token) is not None


def is_significant(token: str) -> bool:
    return not token.isspace() and not token.startswith(("//", "/*", "#"))


def declaration_end(tokens: Sequence[str], start: int) -> int | None:
    """Index of the ``;`` that ends the threadgroup declaration beginning after ``start``; None when it is no
    declaration of memory but a pointer, a reference or a cast."""
    depth = 0
    for i in range(start, len(tokens)):
        token = tokens[i]
        if token in ("(", "[", "{"):
            depth += 1
        elif token in (")", "]", "}"):
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and token in ("*", "&"):
            return None
        elif depth == 0 and token == "=":
            raise RewriteError(f"threadgroup memory with an initialiser: threadgroup{''.join(tokens[start:i])}")
        elif depth == 0 and token == ";":
            return i
    return None


def _split(declarators: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for character in declarators:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]


def _shared(declaration: str, serial: int) -> str:
    """C++ for ``T a[n], b`` in threadgroup memory. A static's address is the key: one a template instantiation."""
    first, *others = _split(declaration.strip())
    head = _FIRST_NAME.match(first)
    if head is None:
        raise RewriteError(f"cannot read the declaration: threadgroup {declaration}")
    base = re.sub(r"\balignas\s*\([^)]*\)", "", head.group(1)).strip()
    names = [(head.group(2), head.group(3))]
    for other in others:
        match = _NEXT_NAME.match(other)
        if match is None:
            raise RewriteError(f"cannot read the declaration: threadgroup {declaration}")
        names.append((match.group(1), match.group(2)))
    lines = []
    for k, (name, dims) in enumerate(names):
        type_name, key = f"mtl_type_{serial}_{k}", f"mtl_key_{serial}_{k}"
        lines.append(
            f"using {type_name} = {base} {dims}; static char {key}; {type_name} &{name} = *({type_name} *)"
            f"mtl_threadgroup_memory(&{key}, sizeof({type_name}), alignof({type_name}), "
            f'metal::mtl_granule<{type_name}>, "{name}");'
        )
    return " ".join(lines) + "\n" * declaration.count("\n")


def rewrite(text: str) -> str:
    """C++ for preprocessed Metal. Raises RewriteError."""
    tokens = TOKEN.findall(text)
    out: list[str] = []
    previous, i, serial = ";", 0, 0
    while i < len(tokens):
        token = tokens[i]
        if token == "threadgroup":
            end = declaration_end(tokens, i + 1) if previous in (";", "{", "}", ")") else None
            if end is not None:
                out.append(_shared("".join(tokens[i + 1 : end]), serial))
                serial, i, previous = serial + 1, end + 1, ";"
                continue
        elif is_attribute(token):
            pass
        else:
            literal = (token[0].isdigit() or token[0] == ".") and _FLOATING.fullmatch(token)
            out.append(token + "f" if literal else token)
            if is_significant(token):
                previous = token
        i += 1
    return "".join(out)
