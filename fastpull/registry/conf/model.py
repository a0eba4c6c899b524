"""``registries.conf``, version 2: the mapping of image names to pull sources. No I/O.

A ``[[registry]]`` table applies to all images whose name begins with its prefix; the longest matching prefix applies.
It may block them, rewrite their location, and name mirrors that are tried first.

Spec: containers-registries.conf(5).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fastpull.errors import Forbidden, InvalidReference, InvalidSetting
from fastpull.oci.reference import DOCKER_HUB, Reference, names_registry

_PULL_FROM_MIRROR = ("all", "digest-only", "tag-only")


@dataclass(frozen=True, slots=True)
class PullSource:
    """One location to pull an image from.

    Attributes:
        reference: the reference of the image there.
        is_mirror: whether the location is a mirror.
        is_insecure: whether plain http and unverified certificates are allowed.
    """

    reference: Reference
    is_mirror: bool = False
    is_insecure: bool = False


@dataclass(frozen=True, slots=True)
class _Mirror:
    location: str
    is_insecure: bool
    pull: str

    def serves(self, reference: Reference) -> bool:
        return self.pull in ("all", "digest-only" if reference.digest else "tag-only")


@dataclass(frozen=True, slots=True)
class _Table:
    """A ``[[registry]]`` table; its location may be empty if the prefix has a wildcard."""

    prefix: str
    location: str
    is_insecure: bool
    is_blocked: bool
    mirrors: tuple[_Mirror, ...]
    path: str

    def __str__(self) -> str:
        return f"{self.path}, [[registry]] {self.prefix!r},"


@dataclass(frozen=True, slots=True)
class RegistriesConf:
    """The merged contents of all files.

    Attributes:
        tables: the ``[[registry]]`` tables, by prefix.
        aliases: the full names of short ones, without tag and digest; an empty one removes an alias.
        search: ``unqualified-search-registries``, or None if no file sets it.
        search_path: the file that sets it.
    """

    tables: Mapping[str, _Table] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    search: tuple[str, ...] | None = None
    search_path: str = ""

    @classmethod
    def parse(cls, body: bytes, path: str) -> RegistriesConf:
        """Parse one file. Options that do not concern pulls are ignored.

        Raises:
            InvalidSetting: not TOML, version 1 of the format, or a value that the specification does not allow.
        """
        try:
            values = tomllib.loads(body.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidSetting(path, f"not TOML ({error})") from error
        top = _Values(values, path)
        if "registries" in values:
            top.fail("a registries.conf of version 1, rewrite its [registries.…] tables as [[registry]] tables")
        tables: dict[str, _Table] = {}
        for one in top.tables("registry"):
            table = _table(one, path)
            tables.setdefault(table.prefix, table)  # within one file, the first table of a prefix applies
        _check_agreement(tables.values(), top)
        aliases = top.table("aliases")
        return cls(
            tables,
            {name: _alias(aliases, name) for name in aliases},
            top.texts("unqualified-search-registries"),
            path,
        )

    def merged(self, later: RegistriesConf) -> RegistriesConf:
        """Return a copy with the contents of a later file, whose tables and aliases replace those of the same name."""
        has_search = later.search is not None
        return RegistriesConf(
            {**self.tables, **later.tables},
            {**self.aliases, **later.aliases},
            later.search if has_search else self.search,
            later.search_path if has_search else self.search_path,
        )

    def qualified(self, text: str) -> Reference:
        """Parse a reference. A short name is replaced by its alias; without one it belongs to Docker Hub.

        Several registries are never searched in turn: a name registered in the first one could hijack the pulls meant
        for the second.

        Raises:
            InvalidReference: not a reference, or a short name although the search excludes Docker Hub.
        """
        if names_registry(text):
            return Reference.parse(text)
        name = text.partition("@")[0].partition(":")[0]
        if full := self.aliases.get(name):
            return Reference.parse(full + text[len(name) :])
        if self.search is not None and DOCKER_HUB not in self.search:
            others = ", ".join(f"{registry}/{text}" for registry in self.search) or "with its registry"
            raise InvalidReference(text, f"{self.search_path} excludes Docker Hub; give the full name ({others})")
        return Reference.parse(text)

    def pull_sources(self, reference: Reference) -> tuple[PullSource, ...]:
        """Return the locations to pull an image from, in order: its mirrors, then its registry.

        Args:
            reference: the reference that the user named.

        Raises:
            Forbidden: the image is blocked, or all its locations are.
            InvalidSetting: the rewritten reference is invalid.
        """
        table = self._find(reference)
        if table is None:
            return (PullSource(reference),)
        if table.is_blocked:
            raise _blocked(reference, table)
        sources = [
            PullSource(_rewritten(reference, table, mirror.location), True, mirror.is_insecure)
            for mirror in table.mirrors
            if mirror.serves(reference)
        ]
        own = _rewritten(reference, table, table.location) if table.location else reference
        sources.append(PullSource(own, False, table.is_insecure))
        blocked = [
            (source, other) for source in sources if (other := self._find(source.reference)) and other.is_blocked
        ]
        allowed = tuple(source for source in sources if source not in [one for one, _ in blocked])
        if not allowed:
            raise _blocked(reference, blocked[0][1])
        return allowed

    def _find(self, reference: Reference) -> _Table | None:
        text = str(reference)
        fitting = [table for table in self.tables.values() if _match(text, table.prefix) is not None]
        return max(fitting, key=lambda table: len(table.prefix), default=None)


def _match(text: str, prefix: str) -> int | None:
    """Return how many characters of a reference a prefix covers; None if it does not match."""
    if prefix.startswith("*."):
        host = text.partition("/")[0].partition(":")[0]
        end, is_there = len(host), host.endswith(prefix[1:])
    else:
        end = len(prefix)
        is_there = text.startswith(prefix)
    return end if is_there and text[end : end + 1] in ("", ":", "/", "@") else None


def _rewritten(reference: Reference, table: _Table, location: str) -> Reference:
    text = location + str(reference)[_match(str(reference), table.prefix) :]
    registry, _, rest = text.partition("/")
    try:
        return Reference.parse(f"{registry}#{rest}")
    except InvalidReference as error:
        raise InvalidSetting(text, f"{table} rewrites {reference} to an invalid reference: {error.reason}") from error


def _blocked(reference: Reference, table: _Table) -> Forbidden:
    return Forbidden(str(reference), f"{table} blocked = true,", "Ask the administrator of that file")


class _Values:
    """A TOML table whose values are validated one by one."""

    def __init__(self, values: Mapping[str, Any], path: str, at: str = "") -> None:
        self._values = values
        self._path = path
        self._at = at

    def __iter__(self) -> Any:
        return iter(self._values)

    def fail(self, reason: str) -> NoReturn:
        where = f"{self._path}, {self._at}" if self._at else self._path
        raise InvalidSetting(where, reason)

    def text(self, name: str) -> str:
        value: str = self._get(name, str, "a string", "")
        return value

    def switch(self, name: str) -> bool:
        value: bool = self._get(name, bool, "true or false", False)
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        values = self._get(name, list, "a list of strings", None)
        if values is None:
            return None
        if not all(isinstance(value, str) for value in values):
            self.fail(f"{name} is not a list of strings")
        return tuple(values)

    def table(self, name: str) -> _Values:
        return _Values(self._get(name, dict, "a table", {}), self._path, f"[{name}]")

    def tables(self, name: str) -> list[_Values]:
        found = self._get(name, list, "a list of tables", [])
        if not all(isinstance(one, dict) for one in found):
            self.fail(f"{name} is not a list of tables")
        return [_Values(one, self._path, f"{self._at}[[{name}]] {number}") for number, one in enumerate(found, 1)]

    def location(self, name: str) -> str:
        found = self.text(name).rstrip("/")
        if "://" in found:
            self.fail(f"{name} has a scheme: {found!r}. Remove it (insecure = true allows plain http)")
        return found

    def _get(self, name: str, kind: type, what: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is not default and not isinstance(value, kind):
            self.fail(f"{name} is not {what}")
        return value


def _table(values: _Values, path: str) -> _Table:
    location = values.location("location")
    prefix = values.location("prefix") or location
    if not prefix:
        values.fail("has neither prefix nor location")
    if not location and not prefix.startswith("*."):
        values.fail(f"no location; only a prefix such as *.example.com may omit it, not {prefix!r}")
    if "*" in prefix.removeprefix("*.") or (prefix.startswith("*.") and set(prefix) & set("/:@")):
        values.fail(f"prefix {prefix!r} has a wildcard that is not of the form *.example.com")
    if values.text("pull-from-mirror"):
        values.fail("pull-from-mirror belongs into [[registry.mirror]]")
    by_digest = values.switch("mirror-by-digest-only")
    mirrors = tuple(_mirror(mirror, by_digest) for mirror in values.tables("mirror"))
    return _Table(prefix, location, values.switch("insecure"), values.switch("blocked"), mirrors, path)


def _mirror(values: _Values, by_digest: bool) -> _Mirror:
    location = values.location("location")
    if not location:
        values.fail("a mirror without location")
    pull = values.text("pull-from-mirror")
    if pull and by_digest:
        values.fail("pull-from-mirror and the registry's mirror-by-digest-only exclude each other")
    if pull and pull not in _PULL_FROM_MIRROR:
        values.fail(f"pull-from-mirror is not one of {', '.join(_PULL_FROM_MIRROR)}")
    return _Mirror(location, values.switch("insecure"), pull or ("digest-only" if by_digest else "all"))


def _check_agreement(tables: Any, top: _Values) -> None:
    """Reject tables of the same location that contradict each other."""
    by_location: dict[str, _Table] = {}
    for table in tables:
        other = by_location.setdefault(table.location or table.prefix, table)
        if other.is_insecure != table.is_insecure or other.is_blocked != table.is_blocked:
            top.fail(f"tables disagree on 'insecure' or 'blocked' of {table.location or table.prefix!r}")


def _alias(aliases: _Values, name: str) -> str:
    full = aliases.text(name)
    if names_registry(name) or set(name) & set(":@"):
        aliases.fail(f"an alias for {name!r}, which is not a short name")
    if not full:
        return ""
    try:
        reference = Reference.parse(full)
    except InvalidReference as error:
        aliases.fail(f"alias {name!r} is not for an image name ({error.reason})")
    if not names_registry(full) or reference.digest or ":" in full.rpartition("/")[2]:
        aliases.fail(f"alias {name!r} must be for a full name without tag and digest, not {full!r}")
    return full
