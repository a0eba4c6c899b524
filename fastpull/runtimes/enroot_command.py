"""enroot's command line and settings for an import: URIs, file names and variables.

Spec: enroot's doc/cmd/import.md, doc/configuration.md, enroot.in (config::init), src/docker.sh (docker::import).
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from fastpull.errors import InvalidReference, InvalidSetting
from fastpull.oci.reference import DOCKER_HUB, Reference

_SCHEME = "docker://"
_OFF = re.compile(r"no?|N[oO]?|[fF](alse)?|FALSE")  # values that enroot reads as not set
_NAME = re.compile(r"ENROOT_[A-Z_]+|SSL_CERT_(?:DIR|FILE)|(?:all|no|http|https)_proxy")
_LINE = re.compile(r"[ \t]*([^ \t=]+)[ \t]*[ \t=][ \t]*(.*)")
_EXPANSION = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\}|\(([^)]*)\))")
_FLAGS = {  # flags of mksquashfs without effect here
    "-all-root",
    "-exit-on-error",
    "-no-duplicates",
    "-no-progress",
    "-noappend",
    "-noF",
    "-noI",
    "-noId",
    "-noInodeCompression",
    "-noFragmentCompression",
    "-noX",
    "-noXattrCompression",
}
_COMPRESSORS = {"gzip", "lz4", "xz", "zstd"}
_WITH_LEVEL = {"gzip", "zstd"}


@dataclass(frozen=True, slots=True)
class EnrootUri:
    """A URI ``docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]``, or with the registry in Docker's syntax.

    Attributes:
        reference: reference of the image.
        user: user name of the credentials; empty for none.
        filename: name that enroot gives to the image's file.

    Raises:
        InvalidReference: from `parse`, if the URI is invalid.
    """

    reference: Reference
    user: str
    filename: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URI of enroot's command line."""
        if not text.startswith(_SCHEME):
            raise InvalidReference(text, f"only {_SCHEME} images can be imported")
        rest = text.removeprefix(_SCHEME)
        before, hash_sign, name = rest.rpartition("#")
        user, at, registry = before.rpartition("@") if hash_sign else rest.partition("@")
        if not hash_sign:
            # without a registry, the text before an @ is a user, unless a digest follows
            is_user = bool(at) and not re.match(r"[a-z0-9]+:[0-9a-f]{32,}$", registry)
            user, name, registry = (user, registry, "") if is_user else ("", rest, "")
        reference = Reference.parse(f"{registry}#{name}" if hash_sign else name)
        image = reference.repository
        if reference.registry == DOCKER_HUB:
            image = image.removeprefix("library/")
        if reference.digest is not None:
            version = f"+{reference.digest}".replace(":", "+")
        else:
            has_tag = ":" in name.rpartition("/")[2]
            version = f"+{reference.tag}" if has_tag else ""
        return cls(reference, user, image.replace("/", "+") + version + ".sqsh")


@dataclass(frozen=True, slots=True)
class EnrootSettings:
    """enroot's settings as settings of fastpull; None for settings that are not set.

    Attributes:
        cache: directory of the cache: ``fastpull`` in ``ENROOT_CACHE_PATH``.
        workers: value of ``ENROOT_MAX_PROCESSORS``.
        connections: value of ``ENROOT_MAX_CONNECTIONS``.
        insecure: value of ``ENROOT_ALLOW_HTTP``.
        compression, block_size, fragments: options in ``ENROOT_SQUASH_OPTIONS``, in the syntax of mksquashfs.
        mtime: modification time of everything in the image, from ``SOURCE_DATE_EPOCH``.
        environment: variables for certificates and proxies that the files set.
        notes: settings that have no equivalent, one sentence each.
    """

    cache: str | None
    workers: str | None
    connections: str | None
    insecure: bool | None
    compression: str | None
    block_size: str | None
    fragments: bool | None
    mtime: int | None
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> Self:
        """Load ``enroot.conf``, ``enroot.conf.d/*.conf`` and the environment, which takes precedence.

        The files are in ``ENROOT_SYSCONF_PATH``, by default ``/etc/enroot``. Values may contain variables,
        ``${NAME:-DEFAULT}``, ``$(id -u)``, ``$(id -g)``, ``$(nproc)`` and ``$(hostname)``. No shell is run.

        Raises:
            InvalidSetting: a file cannot be read, or a value needs another expansion.
        """
        found = dict(environment)
        for path in _files(environment.get("ENROOT_SYSCONF_PATH") or "/etc/enroot"):
            for number, name, value in _settings(path):
                if not found.get(name):
                    found[name] = _expand(value, found, f"{path}, line {number}")
        found = {name: value for name, value in found.items() if not _OFF.fullmatch(value)}
        squash = _Squash.parse(found.get("ENROOT_SQUASH_OPTIONS", ""))
        cache, epoch = found.get("ENROOT_CACHE_PATH"), found.get("SOURCE_DATE_EPOCH", "")
        return cls(
            os.path.join(cache, "fastpull") if cache else None,
            found.get("ENROOT_MAX_PROCESSORS"),
            found.get("ENROOT_MAX_CONNECTIONS"),
            True if found.get("ENROOT_ALLOW_HTTP") else None,
            squash.compression,
            squash.block_size,
            squash.fragments,
            int(epoch) if epoch.isascii() and epoch.isdigit() else None,
            tuple((name, found[name]) for name in sorted(found.keys() - environment) if not name.startswith("ENROOT_")),
            tuple(squash.notes),
        )


def _files(directory: str) -> list[str]:
    more = os.path.join(directory, "enroot.conf.d")
    try:
        names = sorted(name for name in os.listdir(more) if name.endswith(".conf"))
    except OSError:
        names = []
    return [os.path.join(directory, "enroot.conf"), *(os.path.join(more, name) for name in names)]


def _settings(path: str) -> Iterator[tuple[int, str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(path, f"enroot's settings cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match and _NAME.fullmatch(match[1]):
            yield number, match[1], match[2]


def _expand(value: str, known: Mapping[str, str], where: str) -> str:
    """Return the output of ``eval echo VALUE``."""
    commands = {"nproc": str(len(os.sched_getaffinity(0))), "hostname": socket.gethostname()}
    commands |= {"id -u": str(os.geteuid()), "id -g": str(os.getegid())}
    variables = {"HOME": os.path.expanduser("~"), "UID": str(os.getuid()), "EUID": str(os.geteuid()), **known}

    def replaced(match: re.Match[str]) -> str:
        plain, braced, default, command = match.groups()
        if command is None:
            return variables.get(plain or braced, "") or default or ""
        if command.strip() not in commands:
            raise InvalidSetting(f"$({command})", f"cannot be expanded without a shell ({where})")
        return commands[command.strip()]

    try:
        words = shlex.split(value, comments=True)
    except ValueError as error:
        raise InvalidSetting(value, f"the quotes are not balanced ({where})") from error
    if "`" in value:
        raise InvalidSetting(value, f"cannot be expanded without a shell ({where})")
    literal = bool(re.fullmatch(r"'[^']*'", value.strip()))
    text = " ".join(words) if literal else _EXPANSION.sub(replaced, " ".join(words))
    return os.path.expanduser(text) if value.startswith("~") else text


@dataclass(slots=True)
class _Squash:
    """Options of mksquashfs that have an equivalent here."""

    compression: str | None
    block_size: str | None
    fragments: bool | None
    notes: list[str]

    @classmethod
    def parse(cls, text: str) -> _Squash:
        found = cls(None, None, None, [])
        name = level = ""
        has_plain_data = False
        words = iter(shlex.split(text))
        for word in words:
            match word:
                case "-comp":
                    name = next(words, "")
                case "-b":
                    found.block_size = next(words, "")
                case "-Xcompression-level":
                    level = next(words, "")
                case "-noD" | "-noDataCompression":
                    has_plain_data = True
                case "-no-fragments":
                    found.fragments = False
                case "-processors" | "-mem" | "-mkfs-time" | "-all-time" | "-throttle":
                    next(words, "")
                case _ if word not in _FLAGS:
                    found.notes.append(f"ENROOT_SQUASH_OPTIONS: {word} has no equivalent and is ignored")
        if has_plain_data:
            found.compression = "none"
        elif name in _COMPRESSORS:
            found.compression = f"{name}:{level}" if level and name in _WITH_LEVEL else name
        elif name:
            found.notes.append(f"ENROOT_SQUASH_OPTIONS: {name} is not supported, the image is compressed with zstd")
        return found
