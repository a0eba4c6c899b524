"""The wire form of control messages: checked JSON, derived from the fields of frozen dataclasses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Convert = Callable[[Any], Any]


def to_json(name: str, message: object) -> bytes:
    """Return the wire form of a message.

    Args:
        name: the name of the message's type.
        message: a dataclass of strings, numbers, truth values, None, tuples, mappings and dataclasses.
    """
    return json.dumps({"message": name, **_encode(message)}, separators=(",", ":")).encode()


def from_json(content: bytes, types: Mapping[str, type[T]]) -> T:
    """Return the message of a wire form.

    Args:
        content: the wire form.
        types: the known types of messages, by name.

    Raises:
        ValueError: the content is not JSON, its type is unknown, or its fields do not fit that type.
    """
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # one type of error for all malformed content
    name = value.pop("message", None)
    if not isinstance(name, str) or name not in types:
        raise ValueError(f"unknown message {name!r}")
    try:
        kind: Any = types[name]
        found: T = _decoder(kind)(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return found


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _encode(one) for key, one in value.items()}
    if isinstance(value, tuple):
        if value and all(type(one) is bool for one in value):
            return _pack_bits(value)
        return [_encode(one) for one in value]
    return value


@cache
def _decoder(kind: Any) -> _Convert:
    """Return a function that checks a JSON value and converts it to a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _optional(kind)
    if origin is tuple:
        return _unpack_bits if arguments[0] is bool else _tuple_of(_decoder(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_of(arguments[0], _decoder(arguments[1]))
    if is_dataclass(kind):
        return _dataclass_of(kind)
    return _scalar(kind)


def _scalar(kind: type) -> _Convert:
    allowed = (int, float) if kind is float else (kind,)

    def decode(value: Any) -> Any:
        if type(value) not in allowed:
            raise ValueError(f"expected {kind.__name__}, got {value!r:.50}")
        return value

    return decode


def _optional(kind: Any) -> _Convert:
    [inner] = [_decoder(one) for one in get_args(kind) if one is not NoneType]
    return lambda value: None if value is None else inner(value)


def _tuple_of(item: _Convert) -> _Convert:
    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {value!r:.50}")  # noqa: TRY004
        return tuple(map(item, value))

    return decode


def _mapping_of(key: type, item: _Convert) -> _Convert:
    def decode(value: Any) -> dict[Any, Any]:
        return {key(name): item(one) for name, one in _object(value).items()}

    return decode


def _dataclass_of(kind: Any) -> _Convert:
    hints = get_type_hints(kind)
    items = {field.name: _decoder(hints[field.name]) for field in fields(kind)}

    def decode(value: Any) -> Any:
        if _object(value).keys() != items.keys():
            raise ValueError(f"expected the fields {', '.join(items)}, got {', '.join(value)}")
        return kind(**{name: item(value[name]) for name, item in items.items()})

    return decode


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {value!r:.50}")  # noqa: TRY004
    return value


def _pack_bits(values: tuple[bool, ...]) -> str:
    """Return truth values as ``COUNT:HEX``, the first value in the lowest bit: one digit for four chunks."""
    return f"{len(values)}:{sum(1 << number for number, value in enumerate(values) if value):x}"


def _unpack_bits(value: Any) -> tuple[bool, ...]:
    if value == []:
        return ()
    count, separator, digits = value.partition(":") if isinstance(value, str) else ("", "", "")
    bits = int(digits, 16) if separator else -1
    if bits < 0 or bits.bit_length() > int(count):
        raise ValueError(f"expected truth values, got {value!r:.50}")
    return tuple(bool(bits >> number & 1) for number in range(int(count)))
