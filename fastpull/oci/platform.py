"""Platforms, and how well they match."""

from __future__ import annotations

import platform as host_platform
import re
from dataclasses import dataclass, replace
from typing import Self

from fastpull.errors import InvalidPlatform

_PART = re.compile(r"[A-Za-z0-9_.-]+")
_ARCHITECTURES = {  # names in common use -> the specification's name (Go's GOARCH)
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
    "armhf": "arm",
    "armv6l": "arm",
    "armv7l": "arm",
    "armel": "arm",
    "i386": "386",
    "i686": "386",
    "powerpc64le": "ppc64le",
}
_IMPLIED_VARIANTS = {"armhf": "v7", "armv7l": "v7", "armv6l": "v6", "armel": "v6"}
_SYSTEMS = (
    "linux",
    "windows",
    "darwin",
    "freebsd",
    "netbsd",
    "openbsd",
    "solaris",
    "illumos",
    "aix",
    "android",
    "wasip1",
)
_DEFAULT_VARIANTS = {"arm64": "v8", "arm": "v7", "amd64": "v1"}


@dataclass(frozen=True, slots=True)
class Platform:
    """The platform of an image: ``os/architecture[/variant]``.

    Attributes:
        os: operating system, for example ``linux``; empty if a document omits it.
        architecture: Go's name, such as ``amd64`` or ``arm64``; names of the kernel are translated. Empty if omitted.
        variant: variant of the processor, such as ``v7``; None if omitted.

    Spec: image-spec image-index.md, platform.
    """

    os: str
    architecture: str
    variant: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``os/architecture[/variant]``; an architecture alone means Linux, a system alone this machine's.

        Raises:
            InvalidPlatform: a part is empty, or there are too many.
        """
        parts = text.split("/")
        if len(parts) == 1:
            is_system = text.lower() in _SYSTEMS
            parts = [text, host_platform.machine()] if is_system else ["linux", text]
        if len(parts) > 3 or not all(_PART.fullmatch(part) for part in parts):
            raise InvalidPlatform(text, "not a platform")
        return cls.normalised(parts[0], parts[1], parts[2] if len(parts) == 3 else None)

    @classmethod
    def normalised(cls, os: str, architecture: str, variant: str | None = None) -> Self:
        """Return a platform from names in any known spelling."""
        spelled = architecture.lower()
        return cls(
            os.lower(),
            _ARCHITECTURES.get(spelled, spelled),
            (variant.lower() if variant else None) or _IMPLIED_VARIANTS.get(spelled),
        )

    @classmethod
    def of_host(cls) -> Self:
        """Return the platform of this machine."""
        return cls.normalised("linux", host_platform.machine())

    @property
    def is_complete(self) -> bool:
        """Whether both operating system and architecture are known."""
        return bool(self.os and self.architecture)

    def completed(self, wanted: Platform) -> Platform:
        """Return this platform, with an empty operating system or architecture replaced by that of ``wanted``.

        The variant comes with the architecture.
        """
        named = self if self.architecture else wanted
        return Platform(self.os or wanted.os, named.architecture, named.variant)

    @property
    def canonical(self) -> Self:
        """The same platform without a default variant."""
        is_default = self.variant == _DEFAULT_VARIANTS.get(self.architecture)
        return replace(self, variant=None) if is_default else self

    def rank(self, offered: Platform) -> int | None:
        """Return how well an offered platform matches this one.

        Returns:
            None if it does not match; otherwise a number, lower is better. An older variant of the same architecture
            runs on a newer one (arm v6 on v7), never the other way round.
        """
        if (self.os, self.architecture) != (offered.os, offered.architecture):
            return None
        wanted, has = self._level(), offered._level()
        if wanted is None or has is None:
            return 0 if self.variant == offered.variant else None
        return wanted - has if has <= wanted else None

    def _level(self) -> int | None:
        variant = self.variant or _DEFAULT_VARIANTS.get(self.architecture, "v0")
        number = variant.removeprefix("v")
        return int(number) if number.isascii() and number.isdigit() else None

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))
