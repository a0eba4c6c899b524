"""Settings: defaults, overridden by configuration files, ``FASTPULL_*`` in the environment, and the caller.

The fields of `Settings`, `Limits` and `Access` are the table of all settings. Names in TOML and in the environment,
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
from fastpull.config.paths import config_directories
from fastpull.config.schema import (
    COMPRESSION,
    COUNT,
    DIRECTORY,
    FILE,
    LOCKS,
    NAME,
    PULL_POLICY,
    SIZE,
    SWITCH,
    Setting,
    setting_field,
    settings_table,
)
from fastpull.config.toml import read_config_file
from fastpull.config.units import parse_path
from fastpull.errors import InvalidSetting


def _default_cache(environment: Mapping[str, str]) -> str:
    base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "fastpull")


def _step_of_slurm(environment: Mapping[str, str]) -> str:
    """Return a name that all processes of one ``srun`` share, on every node."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    return f"{environment.get('SLURM_CLUSTER_NAME', '')}.{job}.{step}" if job and step else ""


def config_files(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of the configuration files: the site's, then the user's, which overrides it."""
    user, site = config_directories("fastpull", environment)
    return tuple(os.path.join(folder, "config.toml") for folder in (site, user))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client.

    Attributes:
        cache: the directory of the cache.
        workers: the number of layers unpacked at the same time.
        memory: bytes for all buffers together.
        connections: the maximum number of connections to one host.
        site_connections: the maximum number of connections for blobs of all processes that share the cache; by default
            only ``connections`` of each process counts.
        insecure: whether registries may use plain http or unverified certificates.
        sync: whether cache and output are written to disk before they are published.
        pull: when to ask the registry what a tag means: ``always``; ``newer``, where a failure does not matter if the
            cache has the image; ``missing``, only if the cache has no answer; or ``never``.
        job: a name; processes of one user with the same job ask a registry only once what a tag means.
        locks: how nodes that share the cache exclude each other, see `fastpull.cache.locking.file_lock`: ``auto``;
            ``flock``, known to hold between nodes; or ``lease``.
        keep_images: whether pulled squashfs images stay in the cache, so that the next pull copies them. By default
            they do not, since they take as much space as the blobs.
        share_images: whether to trust finished squashfs images of other users who may write to the cache. No digest
            shows that such a file is of its image. By default each user has images of their own.
        compression: the default compression of squashfs images.
        block_size: the default block size of squashfs images, in bytes.
        metrics: the path for `fastpull.metrics.Metrics.write`, for the commands ``pull``, ``warm`` and
            ``importer get``.
        registries_conf: the only ``registries.conf`` to read; by default the user's or the system's.
        policy: the only ``policy.json`` to apply; by default the user's or the system's.
        limits: the limits of an image.
        access: the access to registries.
    """

    cache: str = setting_field(
        DIRECTORY, "directory of the cache", derive=_default_cache, of="$XDG_CACHE_HOME/fastpull, or ~/.cache/fastpull"
    )
    workers: int = setting_field(
        COUNT, "layers unpacked at the same time", derive=lambda _: available_cores(), of="one per available core"
    )
    memory: int = setting_field(SIZE, "memory for all buffers together", default=192 << 20)
    connections: int = setting_field(COUNT, "maximum number of connections to one host", default=16)
    site_connections: int | None = setting_field(
        COUNT,
        "maximum number of connections for blobs of all processes that share the cache",
        default=None,
        of="no limit",
    )
    insecure: bool = setting_field(
        SWITCH,
        "accept unverified certificates and plain http; loopback addresses may always use http",
        default=False,
    )
    sync: bool = setting_field(SWITCH, "write cache and output to disk (fsync) before publishing them", default=False)
    pull: str = setting_field(
        PULL_POLICY, "when to ask the registry, not the cache, what a tag means", default="always"
    )
    job: str = setting_field(
        NAME,
        "name of a job whose processes ask only once what a tag means",
        default="",
        derive=_step_of_slurm,
        of="the Slurm job step, if there is one",
    )
    locks: str = setting_field(
        LOCKS,
        "locks between nodes: flock, if the filesystem is known to hold them across nodes, or lease",
        default="auto",
    )
    keep_images: bool = setting_field(SWITCH, "keep pulled squashfs images in the cache as well", default=False)
    share_images: bool = setting_field(
        SWITCH, "trust finished squashfs images of other users who may write to the cache", default=False
    )
    compression: str = setting_field(
        COMPRESSION,
        "compression of squashfs images: zstd[:1-22], gzip[:1-9], lz4, xz, or none; the flag also sets the level of a "
        "tar.gz (gzip[:1-9]) or tar.zst (zstd[:1-22])",
        default="zstd:1",
    )
    block_size: int = setting_field(SIZE, "block size of squashfs images, from 4K to 1M", default=128 << 10)
    metrics: str | None = setting_field(
        FILE,
        "Prometheus text file, or a directory for one, that pull, warm and importer get add their counters to",
        default=None,
        of="none",
    )
    registries_conf: str | None = setting_field(
        FILE,
        "registries.conf, with mirrors, blocked names and aliases",
        default=None,
        of="that of podman and skopeo",
    )
    policy: str | None = setting_field(
        FILE,
        "policy.json, with the rules for what may be pulled",
        default=None,
        of="that of podman and skopeo",
    )
    limits: Limits = DEFAULT_LIMITS
    access: Access = DEFAULT_ACCESS

    def __post_init__(self) -> None:
        if not self.cache:
            raise InvalidSetting("", "the cache directory must not be empty")
        if self.workers < 1:
            raise InvalidSetting(str(self.workers), "workers must be at least 1")
        if self.connections < 1:
            raise InvalidSetting(str(self.connections), "connections must be at least 1")
        if self.site_connections is not None and self.site_connections < 1:
            raise InvalidSetting(str(self.site_connections), "site_connections must be at least 1")
        if self.memory < 16 << 20:
            raise InvalidSetting(str(self.memory), "memory must be at least 16 MiB")

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ, /, **given: Any) -> Self:
        """Return the settings of this process.

        Args:
            environment: variables, with ``FASTPULL_*`` and those that locate the user's configuration file.
            given: values or texts that override all others; None counts as not given. The names are those of the
                fields of `Settings`, `Limits` and `Access`.

        Raises:
            InvalidSetting: a value is invalid, or a configuration file has an unknown name.
        """
        values = {one.setting.name: one.value for one in effective_settings(environment, **given)}
        for group, kind in _GROUPS.items():
            values[group] = kind(**{name: values.pop(name) for name in settings_table(kind)})
        return cls(**values)


_GROUPS: Mapping[str, type] = {"limits": Limits, "access": Access}
"""Fields of `Settings` that are tables of settings themselves."""

SETTINGS: Mapping[str, Setting] = {
    name: setting for of in (Settings, *_GROUPS.values()) for name, setting in settings_table(of).items()
}
"""All settings, by name."""

LIMITS: tuple[str, ...] = tuple(settings_table(Limits))
"""The names of the settings in `Limits`."""

ACCESS: tuple[str, ...] = tuple(settings_table(Access))
"""The names of the settings in `Access`."""


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting's effective value and its origin.

    Attributes:
        setting: the setting.
        value: the effective value.
        origin: ``default``, ``FILE:LINE``, the name of a variable, or ``argument``.
    """

    setting: Setting
    value: Any
    origin: str

    @property
    def shown(self) -> str:
        """The value as text for people."""
        return "" if self.value is None else self.setting.kind.show(self.value)


def effective_settings(environment: Mapping[str, str] = os.environ, /, **given: Any) -> tuple[Effective, ...]:
    """Return the effective value and the origin of each setting; arguments and errors as for `Settings.load`."""
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
        reason = f"{place}: a configuration file must not hold a secret; use {setting.variable}"
        raise InvalidSetting(setting.name, reason)
    try:
        read = setting.read(value)
    except InvalidSetting as error:
        raise InvalidSetting(error.given, f"{place}: {error.reason}") from None
    if setting.kind.read is parse_path and not os.path.isabs(read):
        raise InvalidSetting(str(value), f"{place}: {setting.name}: a path in a file must be absolute or begin with ~")
    return Effective(setting, read, place)
