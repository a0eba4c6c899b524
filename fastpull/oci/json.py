"""Strict parsing of JSON documents."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from fastpull.errors import MalformedDocument

MAX_DOCUMENT_SIZE = 4 << 20
"""Maximum size of a manifest or config, in bytes; the distribution specification requires registries to accept this."""


class JsonDocument:
    """A JSON object with typed access to its fields.

    Args:
        value: the object.
        subject: name of the document in messages.
        at: path of the object in its document, for messages.
    """

    __slots__ = ("_at", "_subject", "_value")

    def __init__(self, value: dict[str, Any], subject: str, at: str = "") -> None:
        self._value = value
        self._subject = subject
        self._at = at

    @classmethod
    def parse(cls, body: bytes, subject: str) -> JsonDocument:
        """Parse a JSON object.

        Raises:
            MalformedDocument: the body exceeds 4 MiB, is not UTF-8, not JSON or not an object, or any object in it
                has a duplicate name.

        Spec: image-spec considerations.md, Canonicalization and JSON (I-JSON, RFC 7493).
        """
        value = _parse(body, subject)
        if not isinstance(value, dict):
            raise MalformedDocument(subject, "no JSON object")
        return cls(value, subject)

    @classmethod
    def parse_list(cls, body: bytes, subject: str) -> list[JsonDocument]:
        """Parse a list of JSON objects; raises the errors of `parse`."""
        return cls({"": _parse(body, subject)}, subject).children("")

    def fail(self, reason: str) -> NoReturn:
        """Raise MalformedDocument."""
        at = f" at {self._at}" if self._at else ""
        raise MalformedDocument(self._subject, reason + at)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all fields, in the order of the document."""
        return tuple(self._value)

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def _get(self, name: str, kind: type, what: str, required: bool) -> Any:
        value = self._value.get(name)
        if value is None:
            if required:
                self.fail(f"{name!r} is missing")
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            self.fail(f"{name!r} is not {what}")
        return value

    def text(self, name: str) -> str:
        """Return a required string."""
        value: str = self._get(name, str, "a string", required=True)
        return value

    def text_or(self, name: str, default: str) -> str:
        """Return a string, or ``default`` if there is none."""
        value: str | None = self._get(name, str, "a string", required=False)
        return default if value is None else value

    def integer(self, name: str) -> int:
        """Return a required integer."""
        value: int = self._get(name, int, "an integer", required=True)
        return value

    def child(self, name: str) -> JsonDocument | None:
        """Return an object, or None."""
        value = self._get(name, dict, "an object", required=False)
        return None if value is None else JsonDocument(value, self._subject, f"{self._at}/{name}")

    def children(self, name: str) -> list[JsonDocument]:
        """Return a list of objects; empty if there is none."""
        values = self._get(name, list, "a list", required=False) or []
        found = []
        for number, value in enumerate(values):
            if not isinstance(value, dict):
                self.fail(f"{name!r} holds something that is not an object")
            found.append(JsonDocument(value, self._subject, f"{self._at}/{name}/{number}"))
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; empty if there is none."""
        values = self._get(name, list, "a list", required=False) or []
        if not all(isinstance(value, str) for value in values):
            self.fail(f"{name!r} holds something that is not a string")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, str]:
        """Return an object with string values; empty if there is none."""
        values = self._get(name, dict, "an object", required=False) or {}
        if not all(isinstance(value, str) for value in values.values()):
            self.fail(f"{name!r} holds something that is not a string")
        return values

    def keys_of(self, name: str) -> tuple[str, ...]:
        """Return the sorted names of an object; empty if there is none."""
        return tuple(sorted(self._get(name, dict, "an object", required=False) or {}))

    def objects(self, name: str) -> list[dict[str, Any]]:
        """Return a list of objects without checking their fields; empty if there is none."""
        self.children(name)
        return list(self._value.get(name) or ())


def _parse(body: bytes, subject: str) -> Any:
    def fail(reason: str) -> NoReturn:
        raise MalformedDocument(subject, reason)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, value in pairs:
            if name in names:
                fail(f"the name {name!r} twice in one object")
            names[name] = value
        return names

    def no_constant(token: str) -> NoReturn:
        fail(f"{token} is not JSON")

    if len(body) > MAX_DOCUMENT_SIZE:
        fail(f"more than {MAX_DOCUMENT_SIZE} bytes")
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        fail(f"no JSON ({error})")
    except (RecursionError, ValueError):
        fail("no sane JSON (too deep, or a number too long)")
    return value
