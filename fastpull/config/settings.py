"""Settings: defaults, then configuration files, then ``FASTPULL_*`` from the environment, then what the caller says.

The fields of `Settings`, `Limits` and `Access` are the one table of all settings: names in TOML and in the environment,
flags, help and documentation are made from it. A new setting is a new field.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fastpull.config.access import DEFAULT_ACCESS, Access
from fastpull.config.cpu import available_cores
from fastpull.config.limits import DEFAULT_LIMITS, Limits
from fastpull.config.paths import folders
from fastpull.config.schema import (
    COMPRESSION,
    COUNT,
    FILE,
    FOLDER,
    LOCKS,
    NAME,
    PULL_POLICY,
    SIZE,
    SWITCH,
    Setting,
    _setting,
    _table,
)
from fastpull.config.toml import read_config_file
from fastpull.config.units import (
    parse_path,
)
from fastpull.errors import InvalidSetting


def _default_cache(environment: Mapping[str, str]) -> str:
    base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "fastpull")


def _step_of_slurm(environment: Mapping[str, str]) -> str:
    """All processes of ``srun``, on whatever node."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    return f"{environment.get('SLURM_CLUSTER_NAME', '')}.{job}.{step}" if job and step else ""


def config_files(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where configuration files may be: what a site's administrators say, then what the user says."""
    user, site = folders("fastpull", environment)
    return tuple(os.path.join(folder, "config.toml") for folder in (site, user))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a client works.

    Attributes:
        cache: directory of the cache.
        workers: layers that are unpacked side by side.
        memory: bytes for all buffers together.
        connections: to one host, at most.
        site_connections: for blobs, at most, by all processes that share the cache; by default each process has its own
            ``connections`` only.
        insecure: registries may speak plain http or have certificates that nobody vouches for.
        sync: cache and output are on their disks before they appear.
        pull: whether to ask the registry what a tag means now: ``always``; ``newer``, where a failure does not matter
            if the cache has the image; only if that is ``missing`` in the cache; or ``never``.
        job: processes that have this in common, and the user, ask a registry only once what a tag means.
        locks: how nodes that share the cache exclude each other, see `fastpull.cache.locking.file_lock`: ``auto``;
            by a ``flock`` that is known to hold between them; or by ``lease`` alone.
        keep_images: squashfs files that are pulled stay in the cache, too, so that nobody makes them again. By default
            they do not, since they take as much space as the blobs.
        share_images: trust finished squashfs files that others have made who may write to the cache. No digest tells
            whether such a file is what its name says. By default each user has their own.
        compression: of squashfs files, where nothing else is asked for.
        block_size: of squashfs files, likewise, in bytes.
        metrics: what `Metrics.write` takes, for the commands ``pull``, ``warm`` and ``importer get``.
        registries_conf: the one ``registries.conf`` to read; by default those of the usual places.
        policy: the ``policy.json`` to keep to; by default the user's, or else the system's.
        limits: how much an image may take.
        access: how registries are reached, and who asks them.
    """

    cache: str = _setting(
        FOLDER, "directory of the cache", derive=_default_cache, of="$XDG_CACHE_HOME/fastpull, or ~/.cache/fastpull"
    )
    workers: int = _setting(
        COUNT, "layers unpacked side by side", derive=lambda _: available_cores(), of="one per available core"
    )
    memory: int = _setting(SIZE, "memory for all buffers together", default=192 << 20)
    connections: int = _setting(COUNT, "connections to one host, at most", default=16)
    site_connections: int | None = _setting(
        COUNT, "connections for blobs, at most, by all who share the cache", default=None, of="no limit"
    )
    insecure: bool = _setting(
        SWITCH,
        "accept unverified certificates and plain http; loopback addresses may always speak http",
        default=False,
    )
    sync: bool = _setting(SWITCH, "have cache and output on their disks before they appear", default=False)
    pull: str = _setting(PULL_POLICY, "when to ask the registry what a tag means, and not the cache", default="always")
    job: str = _setting(
        NAME,
        "whose processes ask once for all of them what a tag means",
        default="",
        derive=_step_of_slurm,
        of="the step of Slurm's job, if there is one",
    )
    locks: str = _setting(
        LOCKS, "how nodes exclude each other: flock where that is known to reach all of them, or lease", default="auto"
    )
    keep_images: bool = _setting(SWITCH, "keep squashfs images that are pulled in the cache, too", default=False)
    share_images: bool = _setting(
        SWITCH, "trust finished squashfs images of whoever else may write to the cache", default=False
    )
    compression: str = _setting(
        COMPRESSION,
        "of squashfs images: zstd[:1-22], gzip[:1-9], lz4, xz, or none for files as they are; the flag also for a "
        "tar.gz (gzip[:1-9]) or tar.zst (zstd[:1-22])",
        default="zstd:1",
    )
    block_size: int = _setting(SIZE, "of squashfs images, from 4K to 1M", default=128 << 10)
    metrics: str | None = _setting(
        FILE,
        "Prometheus text file, or a directory of them, to which pull, warm and importer get add what they did",
        default=None,
        of="none",
    )
    registries_conf: str | None = _setting(
        FILE,
        "of mirrors, blocked names and aliases: containers' own registries.conf",
        default=None,
        of="where podman and skopeo have it",
    )
    policy: str | None = _setting(
        FILE,
        "of what may be pulled: containers' own policy.json",
        default=None,
        of="where podman and skopeo have it",
    )
    limits: Limits = DEFAULT_LIMITS
    access: Access = DEFAULT_ACCESS

    def __post_init__(self) -> None:
        if not self.cache:
            raise InvalidSetting("", "the cache's directory has to have a name")
        if self.workers < 1:
            raise InvalidSetting(str(self.workers), "workers has to be at least 1")
        if self.connections < 1:
            raise InvalidSetting(str(self.connections), "connections has to be at least 1")
        if self.site_connections is not None and self.site_connections < 1:
            raise InvalidSetting(str(self.site_connections), "site_connections has to be at least 1")
        if self.memory < 16 << 20:
            raise InvalidSetting(str(self.memory), "memory has to be at least 16 MiB")

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ, /, **given: Any) -> Self:
        """Makes the settings of this process.

        Args:
            environment: with ``FASTPULL_*``, and where the user's configuration file is.
            given: what counts above all, as values or as text; None for what was not given. Limits have the names that
                they have in `Limits`, and access those of `Access`.

        Raises:
            InvalidSetting: a value is out of its range, or cannot be read; a configuration file has an unknown name.
        """
        values = {one.setting.name: one.value for one in effective_settings(environment, **given)}
        for group, kind in _GROUPS.items():
            values[group] = kind(**{name: values.pop(name) for name in _table(kind)})
        return cls(**values)


_GROUPS: Mapping[str, type] = {"limits": Limits, "access": Access}
"""Fields of `Settings` that are tables of settings themselves; their settings stand beside the others."""

SETTINGS: Mapping[str, Setting] = {
    name: setting for of in (Settings, *_GROUPS.values()) for name, setting in _table(of).items()
}
"""All settings, by name."""

LIMITS: tuple[str, ...] = tuple(_table(Limits))
"""The names of those that limit what an image may take."""

ACCESS: tuple[str, ...] = tuple(_table(Access))
"""The names of those that say how registries are reached, and who asks them."""


@dataclass(frozen=True, slots=True)
class Effective:
    """What a setting is, and why.

    Attributes:
        setting: which.
        value: that counts.
        origin: who said so: ``default``, ``FILE:LINE``, a variable's name or ``argument``.
    """

    setting: Setting
    value: Any
    origin: str

    @property
    def shown(self) -> str:
        """The value for people."""
        return "" if self.value is None else self.setting.kind.show(self.value)


def effective_settings(environment: Mapping[str, str] = os.environ, /, **given: Any) -> tuple[Effective, ...]:
    """What each setting of this process is, and where it comes from; arguments and errors as for `Settings.load`."""
    if unknown := given.keys() - SETTINGS.keys():
        raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
    found = {name: Effective(one, one.default(environment), "default") for name, one in SETTINGS.items()}
    for path in config_files(environment):
        for name, one in read_config_file(path, SETTINGS).items():
            found[name] = _from_file(SETTINGS[name], one.value, one.place)
    for name, setting in SETTINGS.items():
        if text := environment.get(setting.variable):
            found[name] = Effective(setting, setting.read(text), setting.variable)
    for name, value in given.items():
        if value is not None:
            setting = SETTINGS[name]
            read = setting.read(value) if isinstance(value, str | list) else value
            found[name] = Effective(setting, read, "argument")
    return tuple(found.values())


def _from_file(setting: Setting, value: Any, place: str) -> Effective:
    if setting.kind.is_secret:
        reason = f"{place}: a configuration file is no place for a secret, which belongs into {setting.variable}"
        raise InvalidSetting(setting.name, reason)
    try:
        read = setting.read(value)
    except InvalidSetting as error:
        raise InvalidSetting(error.given, f"{place}: {error.reason}") from None
    if setting.kind.read is parse_path and not os.path.isabs(read):
        raise InvalidSetting(
            str(value), f"{place}: {setting.name}: in a file a path has to be absolute, or begin with ~"
        )
    return Effective(setting, read, place)
