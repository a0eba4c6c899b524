"""Settings: defaults, then configuration files, then ``FASTPULL_*`` from the environment, then what the caller says.

The fields of `Settings`, `Limits` and `Access` are the one table of all settings: names in TOML and in the environment,
flags, help and documentation are made from it. A new setting is a new field.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from fastpull.configfile import read_config_file
from fastpull.errors import InvalidSetting
from fastpull.secret import Secret
from fastpull.sitefiles import folders
from fastpull.values import (
    parse_count,
    parse_host,
    parse_hosts,
    parse_number,
    parse_path,
    parse_seconds,
    parse_size,
    parse_switch,
    show_seconds,
    show_size,
    show_switch,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a setting may have.

    Attributes:
        metavar: in the help of its flag; empty for a switch.
        read: makes the value of a text.
        show: makes a text of the value, which `read` understands.
        types: that a value may have in TOML, beside text.
        is_list: of texts; its flag may be repeated.
        is_secret: it has no place in a file or among arguments, which others may see, and is never shown.
    """

    metavar: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    types: tuple[type, ...] = ()
    is_list: bool = False
    is_secret: bool = False

    @classmethod
    def choice(cls, *words: str) -> Self:
        """One of a few words."""

        def read(text: str) -> str:
            if text not in words:
                raise InvalidSetting(text, f"none of {', '.join(words)}")
            return text

        return cls(f"{{{','.join(words)}}}", read)


COUNT = Kind("N", parse_count, types=(int,))
NUMBER = Kind("N", parse_number, types=(int,))
SECONDS = Kind("SECONDS", parse_seconds, show_seconds, types=(int, float))
SIZE = Kind("SIZE", parse_size, show_size, types=(int,))
SWITCH = Kind("", parse_switch, show_switch, types=(bool,))
FOLDER = Kind("DIR", parse_path)
FILE = Kind("FILE", parse_path)
NAME = Kind("NAME", str)
HOST = Kind("HOST[:PORT]", parse_host)
HOSTS = Kind("HOST[:PORT]", parse_hosts, ",".join, types=(list,), is_list=True)
SECRET = Kind("", Secret, is_secret=True)
COMPRESSION = Kind("NAME[:LEVEL]", str)
LOCKS = Kind.choice("auto", "flock", "lease")
PULL_POLICY = Kind.choice("always", "newer", "missing", "never")


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table of settings.

    Attributes:
        name: in TOML, in `Settings`, and with ``FASTPULL_`` before it in the environment.
        kind: of its values.
        text: what it is, in a few words that may follow its name.
        default: what it is where nobody says anything.
        shown_default: the same for people.
        flag: its name on the command line; empty where it has none of its own.
    """

    name: str
    kind: Kind
    text: str
    default: Callable[[Mapping[str, str]], Any]
    shown_default: str
    flag: str

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"FASTPULL_{self.name.upper()}"

    def read(self, value: Any) -> Any:
        """The value that a text, or a value of TOML, stands for.

        Raises:
            InvalidSetting: it stands for none.
        """
        is_known = isinstance(value, str) or type(value) in self.kind.types  # a bool would be an int, too
        if not is_known or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
            raise InvalidSetting(str(value), f"{self.name}: a value of the wrong type")
        if isinstance(value, list):
            value = ",".join(value)
        try:
            return self.kind.read(str(value))
        except InvalidSetting as error:
            raise InvalidSetting(error.given, f"{self.name}: {error.reason}") from None


def _setting(
    kind: Kind,
    text: str,
    *,
    default: Any = None,
    derive: Callable[[Mapping[str, str]], Any] | None = None,
    of: str = "",
    flag: str | None = None,
) -> Any:
    """A field that is a setting.

    Args:
        kind: of its values.
        text: see `Setting`.
        default: its value where nobody says anything.
        derive: makes that value of the environment, in place of ``default``, which counts where there is none.
        of: tells what ``derive`` does, or what there is in place of no value.
        flag: in place of that which is made of its name.
    """
    metadata = {
        "kind": kind,
        "text": text,
        "default": derive or (lambda _: default),
        "shown_default": of or kind.show(default),
        **({} if flag is None else {"flag": flag}),
    }
    return field(metadata=metadata) if derive and default is None else field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an image may take before it is refused; each is a setting.

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

    max_layer_size: int = _setting(SIZE, "a layer, uncompressed", default=256 << 30)
    max_image_size: int = _setting(SIZE, "all layers together, uncompressed", default=512 << 30)
    max_entries: int = _setting(COUNT, "entries of all layers together", default=4_000_000)
    max_ratio: int = _setting(COUNT, "uncompressed bytes for a byte of a blob, in a layer of more than 1G", default=200)
    max_zstd_window: int = _setting(SIZE, "memory that a zstd layer may ask for", default=128 << 20)

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 1 <= getattr(self, one.name) < 1 << 63:
                raise InvalidSetting(str(getattr(self, one.name)), f"{one.name} has to be at least 1, and below 2^63")


DEFAULT_LIMITS = Limits()
_NO_PASSWORD = Secret()


@dataclass(frozen=True, slots=True)
class Access:
    """How registries are reached, and who asks them; each is a setting.

    Attributes:
        authfile: the one file of logins to read, in the format of podman's ``auth.json``; by default the usual places.
        username, password: shown to the registry that the sources name, and to no other.
        registry: the one registry that user name and password are for, whatever else is pulled.
        netrc: look into ``$NETRC`` or ``~/.netrc`` as the last of all files.
        credential_commands: passwords in enroot's ``.credentials`` that begin with ``$`` are given to a shell.
        cert_dir: a directory of certificates for the registries that the sources name, in place of ``certs.d``.
        insecure_registries: ``HOST[:PORT]``: these may speak plain http, or have certificates that nobody vouches for.
        private_hosts: hosts with addresses of private networks that a public registry may send this client to.
        retries: how often a request is repeated that fails for a reason that may pass, and brings nothing new.
        timeout: seconds for which a host may send nothing; five times as many without anything new end a request.
    """

    authfile: str | None = _setting(
        FILE,
        "the one file of logins to read, such as podman's auth.json",
        default=None,
        of="REGISTRY_AUTH_FILE, or where podman, skopeo, docker and enroot have them",
    )
    username: str = _setting(
        NAME, "who asks the registry that the sources name; `--creds`", default="", of="as logins say", flag=""
    )
    password: Secret = _setting(  # noqa: RUF009  # it makes a field
        SECRET, "of that user; `--password-stdin`, or `--creds`", default=_NO_PASSWORD, of="none", flag=""
    )
    registry: str = _setting(HOST, "the one that user name and password are for", default="", of="that of the sources")
    netrc: bool = _setting(SWITCH, "look for logins in $NETRC or ~/.netrc, too", default=False)
    credential_commands: bool = _setting(
        SWITCH,
        "let a shell expand passwords of enroot's .credentials that begin with $, as enroot does",
        default=False,
    )
    cert_dir: str | None = _setting(
        FOLDER, "certificates for the registries that the sources name", default=None, of="that of the host in certs.d"
    )
    insecure_registries: tuple[str, ...] = _setting(
        HOSTS, "as insecure, for single hosts", default=(), of="none", flag="--insecure-registry"
    )
    private_hosts: tuple[str, ...] = _setting(
        HOSTS,
        "hosts of private networks that a public registry may send fastpull to",
        default=(),
        of="none",
        flag="--private-host",
    )
    retries: int = _setting(NUMBER, "repetitions of a request that brings nothing new", default=5)
    timeout: float = _setting(SECONDS, "for which a host may send nothing", default=60.0)

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidSetting(str(self.retries), "retries has to be at least 0")
        if not 0 < self.timeout < float("inf"):
            raise InvalidSetting(str(self.timeout), "timeout has to be above 0")
        if bool(self.username) != bool(self.password):
            reason = "a user name and a password go together (--password-stdin or FASTPULL_PASSWORD gives the password)"
            raise InvalidSetting(self.username or "a password alone", reason)


DEFAULT_ACCESS = Access()


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
        locks: how nodes that share the cache exclude each other, see `fastpull.cache.locks`: ``auto``; by a ``flock``
            that is known to hold between them; or by ``lease`` alone.
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


def _table(of: type) -> dict[str, Setting]:
    return {
        one.name: Setting(one.name, **{"flag": f"--{one.name.replace('_', '-')}", **one.metadata})
        for one in fields(of)
        if one.metadata
    }


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
