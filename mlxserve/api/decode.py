"""Bytes of a request body -> one of ``schemas``' types, or a BadRequest that names the field.

Also finds the fields that are not ours: those that would change the output if they were honoured are refused, the
others are reported. Knows nothing of what the fields mean together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from mlxserve.api.schemas import Body
from mlxserve.api.unsupported import refuse_unsupported
from mlxserve.errors import BadRequest

B = TypeVar("B", bound=Body)

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_LIMIT = re.compile(r"^Expected `\w+` (?P<limit>(?:>=|<=|>|<|of length) .*)$")
_TYPE = re.compile(r"^Expected `(?P<type>[^`]*)`, got `(?P<got>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`$")
_NOT_JSON_NUMBER = re.compile(rb'"(?P<name>[^"\\]{1,100})"\s*:\s*(?P<value>-?(?:NaN|Infinity))\b')
_SHOWN = 60  # characters of a value that a message repeats


@dataclass(frozen=True, slots=True)
class Decoded(Generic[B]):
    """A body, and the names of its fields that nothing reads."""

    body: B
    ignored: tuple[str, ...]


class BodyDecoder(Generic[B]):
    """Decodes one endpoint's bodies. Holds no state between calls; safe in any thread."""

    def __init__(self, kind: type[B]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def __call__(self, raw: bytes, *, strict: bool = False) -> Decoded[B]:
        """Raises BadRequest for what is not JSON, of the wrong type, out of range or not supported, and, when
        ``strict``, for any unknown field."""
        try:
            fields = self._fields.decode(raw)
            refuse_unsupported(fields, self._known)
            body = self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise _field_error(str(error), raw) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _json_error(str(error), raw) from None
        except RecursionError:
            raise BadRequest("The body is nested too deeply.") from None
        ignored = tuple(name for name in fields if name not in self._known)
        if strict and ignored:
            raise BadRequest(f"{_shown(ignored[0])} is not a field of this request", param=ignored[0][:_SHOWN])
        return Decoded(body, ignored)


def _field_error(message: str, raw: bytes) -> BadRequest:
    match = _AT.match(message)
    assert match is not None
    what, path = match["what"], (match["path"] or "").partition("[...]")[0]
    if missing := _MISSING.match(what):
        name = f"{path}.{missing['name']}" if path else missing["name"]
        return BadRequest(f"{name} is required", param=name)
    if not path:
        return BadRequest(f"The body must be a JSON object: {what[:200]}")
    if wrong := _TYPE.match(what):
        return BadRequest(f"{path} must be {wrong['type']}, not {wrong['got']}", param=path)
    if what == "Number out of range":
        return BadRequest(f"{path} is not a finite number", param=path)
    value = _value_at(path, raw)
    if limit := _LIMIT.match(what):
        return BadRequest(f"{path} is {value}, but must be {limit['limit']}", param=path)
    if what.startswith("Invalid enum value"):
        wrong_value = _shown(what.removeprefix("Invalid enum value "))
        return BadRequest(f"{path} is {wrong_value}, which is not supported", param=path)
    return BadRequest(f"{path} is {value}: {what[:200]}", param=path)


def _value_at(path: str, raw: bytes) -> str:
    """The value at a msgspec path, shortened."""
    try:
        value: object = msgspec.json.decode(raw)
    except msgspec.DecodeError:  # another field holds what is no value at all
        return "wrong"
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if isinstance(value, dict):
            value = value[name]
        elif isinstance(value, list):
            value = value[int(index)]
    return _shown(msgspec.json.encode(value).decode())


def _json_error(message: str, raw: bytes) -> BadRequest:
    """NaN and Infinity are what some clients write for numbers, so the field is looked for and named."""
    if number := _NOT_JSON_NUMBER.search(raw):
        name = number["name"].decode("utf-8", "replace")
        return BadRequest(f"{name} is {number['value'].decode()}, which is not a finite number", param=name)
    return BadRequest(f"The body is not valid JSON: {message}")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
