"""References: names of images in registries."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Self

from fastpull.errors import InvalidReference
from fastpull.oci.digest import Digest

DOCKER_HUB = "docker.io"
_DOCKER_HUB_HOST = "registry-1.docker.io"
_DOCKER_HUB_NAMES = {DOCKER_HUB, "index.docker.io", _DOCKER_HUB_HOST}

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST_LABEL = r"(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])"
_HOST = re.compile(
    rf"(?P<name>{_HOST_LABEL}(?:\.{_HOST_LABEL})*|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])(?::(?P<port>[0-9]{{1,5}}))?"
)
_MAX_REPOSITORY = 255  # with the registry's name: distribution/reference, NameTotalLengthMax


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry: ``registry/repository[:tag][@digest]``.

    Attributes:
        registry: host and port; Docker Hub is ``docker.io``.
        repository: name within the registry, including ``library/``.
        tag: tag; ``latest`` if the user gave neither tag nor digest.
        digest: digest that pins the content; the tag has no effect then.

    Raises:
        InvalidReference: a part is malformed.

    Spec: distribution-spec, Pulling manifests; the defaults are docker's.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    def __post_init__(self) -> None:
        _check_registry(self.registry)
        if not _REPOSITORY.fullmatch(self.repository):
            upper = " (it must be lower case)" if self.repository != self.repository.lower() else ""
            raise InvalidReference(self.repository, f"not a repository name{upper}")
        if len(self.registry) + 1 + len(self.repository) > _MAX_REPOSITORY:
            raise InvalidReference(self.repository, f"repository name is longer than {_MAX_REPOSITORY} characters")
        if self.tag is not None and not _TAG.fullmatch(self.tag):
            raise InvalidReference(self.tag, "not a tag")
        if self.tag is None and self.digest is None:
            raise InvalidReference(self.repository, "neither tag nor digest")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a reference as docker does; also enroot's ``REGISTRY#IMAGE``.

        The first part is a registry if it contains a dot, a colon or upper-case letters, is ``localhost``, or is
        followed by ``#``. The default registry is Docker Hub, where a name of one part is in ``library/``.
        """
        if "://" in text:
            raise InvalidReference(text, "a reference has no scheme")
        rest, at, digest = text.partition("@")
        if at and "#" in digest:
            raise InvalidReference(
                text,
                "a user name in a reference is not supported (log in, or use --creds USER --password-stdin)",
            )
        registry, hash_sign, name = rest.partition("#")
        if not hash_sign:
            registry, name = _split_registry(rest)
        name, colon, tag = name.partition(":")
        if (at and not digest) or (colon and not tag) or (hash_sign and not registry):
            raise InvalidReference(text, "an empty part")
        if registry in _DOCKER_HUB_NAMES:
            registry = DOCKER_HUB
            name = name if "/" in name else f"library/{name}"
        pinned = Digest.parse(digest) if at else None
        return cls(registry, name, tag or (None if pinned else "latest"), pinned)

    @property
    def host(self) -> str:
        """Host and port to connect to; they differ from `registry` for Docker Hub."""
        return _DOCKER_HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def version(self) -> str:
        """The digest if there is one, else the tag."""
        return str(self.digest) if self.digest else str(self.tag)

    def pinned(self, digest: Digest) -> Self:
        """Return this reference with the digest that it resolved to."""
        return replace(self, digest=digest)

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest; with ``#`` if ``/`` would be parsed differently."""
        named = f"{self.registry}/{self.repository}"
        return named if _split_registry(named)[0] == self.registry else f"{self.registry}#{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.name}{tag}{digest}"


def is_loopback(host: str) -> bool:
    """Return whether a ``host[:port]`` is this machine, by name or literal address; no resolver is used."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["ipv6"] or match["name"]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def names_registry(text: str) -> bool:
    """Return whether a reference names its registry."""
    name = text.partition("@")[0]
    first, slash, _ = name.partition("/")
    is_host = first == "localhost" or first != first.lower() or "." in first or ":" in first
    return "#" in name or (bool(slash) and is_host)


def _split_registry(text: str) -> tuple[str, str]:
    if not names_registry(text):
        return DOCKER_HUB, text
    registry, _, name = text.partition("/")
    return registry, name


def _check_registry(registry: str) -> None:
    match = _HOST.fullmatch(registry)
    if match is None or int(match["port"] or 0) > 65535:
        raise InvalidReference(registry, "not a registry host")
    if match["ipv6"] is not None:
        try:
            ipaddress.IPv6Address(match["ipv6"])
        except ValueError:
            raise InvalidReference(registry, "not a registry host") from None
