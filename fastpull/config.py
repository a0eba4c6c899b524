"""Settings: defaults, then ``FASTPULL_*`` from the environment, then what the caller says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from fastpull.errors import InvalidSetting

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", re.IGNORECASE)
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an image may take before it is refused; each has a setting: ``FASTPULL_MAX_ENTRIES``.

    What no setting raises stands in docs/threat-model.md, with these.

    Attributes:
        max_layer_size: bytes of a layer, uncompressed, or of its files with their holes.
        max_image_size: the same for all layers together.
        max_entries: of all layers together; each takes some 300 bytes of memory until the output is made.
        max_ratio: uncompressed bytes for each byte of a blob. A layer is asked only once it has taken 1 GiB, or a tenth
            of the free space where the output is made: what is small may be as compressible as it likes.
        max_zstd_window: bytes that a zstd frame may ask to keep in memory; by default what the zstd tool allows
            without ``--long``.
    """

    max_layer_size: int = 256 << 30
    max_image_size: int = 512 << 30
    max_entries: int = 4_000_000
    max_ratio: int = 200
    max_zstd_window: int = 128 << 20

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 1 <= getattr(self, one.name) < 1 << 63:
                raise InvalidSetting(str(getattr(self, one.name)), f"{one.name} has to be at least 1, and below 2^63")


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Settings:
    """How a client works.

    Attributes:
        cache: directory of the cache. ``FASTPULL_CACHE``; by default ``$XDG_CACHE_HOME/fastpull`` or
            ``~/.cache/fastpull``.
        workers: layers that are unpacked side by side. ``FASTPULL_WORKERS``; by default as many as there are cores to
            be had.
        memory: bytes for all buffers together. ``FASTPULL_MEMORY``; by default 192 MiB.
        connections: to one host, at most. ``FASTPULL_CONNECTIONS``; by default 16.
        insecure: registries may speak plain http or have certificates that nobody vouches for. ``FASTPULL_INSECURE``.
        sync: cache and output are on their disks before they appear. ``FASTPULL_SYNC``.
        limits: how much an image may take.
        registries_conf: the one ``registries.conf`` to read. ``FASTPULL_REGISTRIES_CONF``; by default the usual places.
        policy: the ``policy.json`` to keep to. ``FASTPULL_POLICY``; by default the user's, or else the system's.
    """

    cache: str
    workers: int
    memory: int = 192 << 20
    connections: int = 16
    insecure: bool = False
    sync: bool = False
    limits: Limits = DEFAULT_LIMITS
    registries_conf: str | None = None
    policy: str | None = None

    def __post_init__(self) -> None:
        if not self.cache:
            raise InvalidSetting("", "the cache's directory has to have a name")
        if self.workers < 1:
            raise InvalidSetting(str(self.workers), "workers has to be at least 1")
        if self.connections < 1:
            raise InvalidSetting(str(self.connections), "connections has to be at least 1")
        if self.memory < 16 << 20:
            raise InvalidSetting(str(self.memory), "memory has to be at least 16 MiB")

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ, /, **given: Any) -> Self:
        """Makes the settings of this process.

        Args:
            environment: with ``FASTPULL_*``.
            given: what counts above all, as values or as text; None for what was not given. Limits have the names that
                they have in `Limits`.

        Raises:
            InvalidSetting: a value is out of its range, or cannot be read.
        """
        base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        found: dict[str, Any] = {"cache": os.path.join(base, "fastpull"), "workers": available_cores()}
        found.update({name: environment.get(f"FASTPULL_{name.upper()}") or found.get(name) for name in _READERS})
        found.update({name: value for name, value in given.items() if value is not None})
        read = {name: _read(name, value) for name, value in found.items() if value is not None}
        limits = {name: read.pop(name) for name in _LIMITS if name in read}
        if limits:
            read["limits"] = Limits(**limits)
        return cls(**read)


def _read(name: str, value: Any) -> Any:
    try:
        return _READERS[name](value) if isinstance(value, str) else value
    except InvalidSetting as error:
        raise InvalidSetting(error.given, f"{name}: {error.reason}") from None


def parse_count(text: str) -> int:
    """Reads a whole number above zero."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise InvalidSetting(text, "not a whole number above zero")
    return int(text)


def parse_size(text: str) -> int:
    """Reads a size such as ``300M`` or ``1.5GiB``; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(text, "not a size, such as 300M or 1.5G")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_age(text: str) -> float:
    """Reads a time span such as ``12h`` or ``30d``, in seconds."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(text, "not an age, such as 12h or 30d")
    return float(match[1]) * _AGES[match[2].lower()]


def parse_switch(text: str) -> bool:
    """Reads ``1``, ``true``, ``yes``, ``on`` or their opposites."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise InvalidSetting(text, "neither yes nor no")


_LIMITS: dict[str, Callable[[str], Any]] = {
    "max_layer_size": parse_size,
    "max_image_size": parse_size,
    "max_entries": parse_count,
    "max_ratio": parse_count,
    "max_zstd_window": parse_size,
}
_READERS: dict[str, Callable[[str], Any]] = {
    **_LIMITS,
    "cache": str,
    "registries_conf": str,
    "policy": str,
    "workers": parse_count,
    "memory": parse_size,
    "connections": parse_count,
    "insecure": parse_switch,
    "sync": parse_switch,
}


def available_cores() -> int:
    """The processors that this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota + 0.5))) if quota else cores


def _cgroup_quota() -> float | None:
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        try:
            with open(path) as file:
                words = file.read().split()
            if len(words) == 1:
                with open(path.replace("quota", "period")) as file:
                    words.append(file.read().strip())
            quota, period = words
            if quota not in ("max", "-1") and int(period) > 0:
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return None
