"""Every error that fastpull raises.

::

    FastpullError                          exit code
    ├── InvalidInput (ValueError)                  3   what the caller gave cannot be understood
    │   ├── InvalidReference
    │   │   └── InvalidSource
    │   ├── InvalidDigest
    │   ├── InvalidPlatform
    │   └── InvalidSetting
    ├── TransportError (OSError)                  10   no answer: name, connection, TLS, stall, reset
    ├── RegistryError                             11   an answer that cannot be used
    │   ├── NotFound (LookupError)
    │   ├── NoMatchingPlatform (LookupError)
    │   ├── RateLimited
    │   ├── UnexpectedAnswer
    │   └── MalformedDocument
    ├── AccessDenied (PermissionError)            12   401, 403: credentials missing, wrong or not enough
    ├── Forbidden (PermissionError)               13   this machine's own rules do not let the image in
    ├── IntegrityError                            20   bytes that are not what their digest promised
    │   ├── DigestMismatch
    │   ├── SizeMismatch
    │   ├── DiffIdMismatch
    │   ├── WindowDamaged
    │   └── RunDamaged
    ├── UnsupportedMediaType                      21   an artifact, a schema 1 image, an unknown layer format
    ├── DecompressError                           22   a corrupt or truncated gzip or zstd stream
    ├── TarError                                  23   a layer that is not a well-formed tar
    ├── LayerError                                24   a changeset that breaks the rules of image-spec's layer.md
    ├── LimitExceeded                             25   an image that takes more than it may
    ├── CacheError (OSError)                      30   the cache cannot be read or written
    │   └── LockLost                              30   this process stood still, somebody else has taken over
    ├── OutputError (OSError)                     31   the destination cannot be written
    │   └── OutputExists (FileExistsError)
    └── ClusterError                              40   the ranks of a job cannot work together
        ├── MpiError
        ├── Disagreement
        ├── RankFailed
        ├── RankLost
        └── OutputDiffers

Each class carries its facts as fields and makes its message from them, with the next step where there is one.
No message holds a credential. ``asyncio.CancelledError`` is never wrapped.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

__all__ = [
    "AccessDenied",
    "CacheError",
    "ClusterError",
    "DecompressError",
    "DiffIdMismatch",
    "DigestMismatch",
    "Disagreement",
    "FastpullError",
    "Forbidden",
    "IntegrityError",
    "InvalidDigest",
    "InvalidInput",
    "InvalidPlatform",
    "InvalidReference",
    "InvalidSetting",
    "InvalidSource",
    "LayerError",
    "LimitExceeded",
    "LockLost",
    "MalformedDocument",
    "MpiError",
    "NoMatchingPlatform",
    "NotFound",
    "OutputDiffers",
    "OutputError",
    "OutputExists",
    "RankFailed",
    "RankLost",
    "RateLimited",
    "RegistryError",
    "RunDamaged",
    "SizeMismatch",
    "TarError",
    "TransportError",
    "UnexpectedAnswer",
    "UnsupportedMediaType",
    "WindowDamaged",
]


def printable(name: bytes | str) -> str:
    """Return text of an image, a registry or a file name for terminals: invalid UTF-8 and controls are escaped."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(eq=False)
class FastpullError(Exception):
    """The root of the tree.

    Attributes:
        exit_code: what the command line exits with; one per family.
        asked: what a host was asked for, and as whom, where that is not said otherwise.
    """

    exit_code: ClassVar[int] = 1
    asked = ""

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    @property
    def message(self) -> str:
        """What happened, and where: one line, safe for terminals."""
        return printable(f"{self._message()} ({self.asked})" if self.asked else self._message())

    @property
    def hint(self) -> str:
        """What to do next; empty where there is nothing to do."""
        return printable(self._hint())

    def _message(self) -> str:
        return type(self).__name__

    def _hint(self) -> str:
        return ""


# --- 3: invalid input


@dataclass(eq=False)
class InvalidInput(FastpullError, ValueError):
    """Something the caller gave cannot be understood."""

    exit_code = 3
    given: str
    reason: str

    def _message(self) -> str:
        return f"{self.reason}: {self.given!r}"


class InvalidReference(InvalidInput):
    """An image reference breaks the grammar."""

    def _hint(self) -> str:
        return "A reference is [HOST[:PORT]/]NAME[:TAG][@DIGEST], for example nvcr.io/nvidia/pytorch:24.01-py3"


class InvalidSource(InvalidReference):
    """A source that is no registry's breaks its grammar, or does not say which of several images is meant."""

    def _hint(self) -> str:
        return "fastpull pull --help has the forms of a source, for example docker-archive:FILE:NAME:TAG"


class InvalidDigest(InvalidInput):
    """A digest breaks the grammar, or names an algorithm that is not registered."""

    def _hint(self) -> str:
        return "A digest is sha256: and 64, or sha512: and 128, lower-case hexadecimal digits"


class InvalidPlatform(InvalidInput):
    """A platform is not os/architecture[/variant]."""

    def _hint(self) -> str:
        return "A platform is OS/ARCHITECTURE[/VARIANT], for example linux/arm64/v8"


class InvalidSetting(InvalidInput):
    """An option, environment variable or configuration file holds a value out of its range."""


# --- 10: transport


@dataclass(eq=False)
class TransportError(FastpullError, OSError):
    """No complete answer came from a host: name, connection, TLS, a stall, a reset.

    Attributes:
        is_transient: whether the same request may well succeed a moment later.
        is_certificate: the host answered, and is not trusted.
    """

    exit_code = 10
    host: str
    reason: str
    advice: str = ""
    is_transient: bool = True
    is_certificate: bool = False

    def _message(self) -> str:
        return f"cannot reach {self.host}: {self.reason}"

    def _hint(self) -> str:
        return self.advice or "Check the name and the network, and try again: what has come is kept"


# --- 11: registry answers


class RegistryError(FastpullError):
    """A host answered, but not with something that can be used."""

    exit_code = 11


@dataclass(eq=False)
class NotFound(RegistryError, LookupError):
    """The source has no such repository, tag, manifest or blob."""

    subject: str
    where: str
    advice: str = ""

    def _message(self) -> str:
        return f"{self.where} has no {self.subject}"

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class NoMatchingPlatform(RegistryError, LookupError):
    """An image index has no manifest for the wanted platform."""

    subject: str
    wanted: str
    available: tuple[str, ...]

    def _message(self) -> str:
        return f"no manifest for {self.wanted} in: {self.subject}"

    def _hint(self) -> str:
        if not self.available:
            return "It lists no platform at all"
        return f"Choose another with --platform; it has {', '.join(self.available)}"


@dataclass(eq=False)
class RateLimited(RegistryError):
    """The host asks for a longer pause than fastpull is ready to make (HTTP 429)."""

    host: str
    retry_after_seconds: float | None

    def _message(self) -> str:
        return f"{self.host} limits the rate of requests (HTTP 429)"

    def _hint(self) -> str:
        again = f"Try again in {self.retry_after_seconds:.0f} s" if self.retry_after_seconds else "Try again later"
        return f"{again}; logging in often raises the limit"


@dataclass(eq=False)
class UnexpectedAnswer(RegistryError):
    """A status, header or body that the distribution specification does not allow here."""

    url: str
    reason: str
    status: int | None = None
    advice: str = ""

    def _message(self) -> str:
        status = f"HTTP {self.status}, " if self.status is not None else ""
        return f"unexpected answer ({status}{self.reason}) from: {self.url}"

    def _hint(self) -> str:
        return self.advice or "Try again later; if it stays so, tell those who run that host"


@dataclass(eq=False)
class MalformedDocument(RegistryError):
    """A manifest, index, config or token answer breaks its specification."""

    subject: str
    reason: str

    def _message(self) -> str:
        return f"{self.reason} in: {self.subject}"

    def _hint(self) -> str:
        return "Tell those who made it: fastpull can do nothing about it"


# --- 12: access


@dataclass(eq=False)
class AccessDenied(FastpullError, PermissionError):
    """The registry refused the credentials, or the lack of them (HTTP 401, 403).

    Attributes:
        advice: what else to try.
    """

    exit_code = 12
    subject: str
    host: str
    credentials: str
    advice: str = ""

    def _message(self) -> str:
        return f"{self.host} denied access to {self.subject} ({self.credentials})"

    def _hint(self) -> str:
        login = (
            f"Check the name, or log in: docker login {self.host}; fastpull inspect --auth {self.host} tells who asks"
        )
        return f"{login}. {self.advice}" if self.advice else login


# --- 13: the site's rules


@dataclass(eq=False)
class Forbidden(FastpullError, PermissionError):
    """A file of this machine, ``policy.json`` or ``registries.conf``, does not let the image in.

    Attributes:
        subject: the image.
        rule: what forbids it, with the file that says so.
        advice: what to do next.
    """

    exit_code = 13
    subject: str
    rule: str
    advice: str = ""

    def _message(self) -> str:
        return f"{self.rule} forbids: {self.subject}"

    def _hint(self) -> str:
        return self.advice


# --- 20: integrity


class IntegrityError(FastpullError):
    """Bytes are not what their descriptor promised."""

    exit_code = 20


@dataclass(eq=False)
class DigestMismatch(IntegrityError):
    """A blob does not hash to its digest."""

    subject: str
    expected: str
    actual: str

    def _message(self) -> str:
        return f"got digest {self.actual}, expected {self.expected} for: {self.subject}"

    def _hint(self) -> str:
        return "The source, something on the way or the cache changed the bytes; nothing was kept"


@dataclass(eq=False)
class SizeMismatch(IntegrityError):
    """A blob is shorter or longer than its descriptor says."""

    subject: str
    expected: int
    actual: int

    def _message(self) -> str:
        return f"got {self.actual} bytes, expected {self.expected} for: {self.subject}"


@dataclass(eq=False)
class DiffIdMismatch(IntegrityError):
    """A layer, uncompressed, does not hash to the diff_id in the image's config."""

    subject: str
    expected: str
    actual: str

    def _message(self) -> str:
        return f"got diff_id {self.actual}, expected {self.expected} for layer: {self.subject}"

    def _hint(self) -> str:
        return "The image's config and layers do not belong together; its author has to build it again"


@dataclass(eq=False)
class WindowDamaged(IntegrityError):
    """What one rank sent to another arrived changed."""

    sender: str
    offset: int
    size: int

    def _message(self) -> str:
        return (
            f"bytes {self.offset} to {self.offset + self.size} of a blob were changed on their way from {self.sender}"
        )

    def _hint(self) -> str:
        return "The fault is in the network, its driver or the memory of one of the two nodes; nothing was kept of it"


@dataclass(eq=False)
class RunDamaged(IntegrityError):
    """What another rank has made of a layer is not what it says of itself."""

    subject: str
    reason: str

    def _message(self) -> str:
        return f"what another node has made of {self.subject} cannot be used: {self.reason}"

    def _hint(self) -> str:
        return (
            "The fault is in the memory or the disk of one of the nodes, or on the way between them; nothing was kept"
        )


# --- 21 to 24: what is in the image


@dataclass(eq=False)
class UnsupportedMediaType(FastpullError):
    """An object is well-formed, but nothing that can become a root filesystem."""

    exit_code = 21
    subject: str
    media_type: str
    reason: str = "unsupported media type"
    advice: str = ""

    def _message(self) -> str:
        return f"{self.reason} {self.media_type!r} in: {self.subject}"

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class DecompressError(FastpullError):
    """A layer's compressed stream is corrupt, truncated, or followed by something else."""

    exit_code = 22
    subject: str
    reason: str

    def _message(self) -> str:
        return f"cannot decompress ({self.reason}) layer: {self.subject}"


@dataclass(eq=False)
class TarError(FastpullError):
    """A layer is not a well-formed tar archive, or one that readers would understand in different ways.

    Attributes:
        offset: of the header at fault in the uncompressed layer, in bytes.
        culprit: the name at fault, where it is known.
        after: the path of the entry before it.
    """

    exit_code = 23
    subject: str
    reason: str
    offset: int
    culprit: bytes = b""
    after: bytes = b""

    def _message(self) -> str:
        culprit = f" of {printable(self.culprit)!r}" if self.culprit else ""
        after = f" (after {printable(self.after)!r})" if self.after else ""
        return f"{self.reason}{culprit} at byte {self.offset}{after} in tar of layer: {self.subject}"


@dataclass(eq=False)
class LayerError(FastpullError):
    """An entry of a changeset is refused: it leaves the root, or has no meaning where it stands."""

    exit_code = 24
    subject: str
    reason: str
    path: bytes

    def _message(self) -> str:
        return f"{self.reason}: {printable(self.path)!r} in layer: {self.subject}"


@dataclass(eq=False)
class LimitExceeded(FastpullError):
    """A layer takes more than it may: of the disk, of memory, of time.

    Attributes:
        limit: what there is too much of, with the number.
        path: of the entry at which it became too much, where it is known.
        setting: that raises the limit; empty for one that comes from the formats or from the kernel.
    """

    exit_code = 25
    subject: str
    limit: str
    path: bytes = b""
    setting: str = ""

    def _message(self) -> str:
        path = f" at {printable(self.path)!r}" if self.path else ""
        return f"{self.limit}{path} in layer: {self.subject}"

    def _hint(self) -> str:
        if not self.setting:
            return "No setting raises this limit; the image's author has to build it again"
        flag = self.setting.replace("_", "-")
        return f"If the image is to be trusted with more, raise the limit: --{flag}, FASTPULL_{self.setting.upper()}"


# --- 30, 31: the local machine


@dataclass(eq=False)
class _LocalError(FastpullError, OSError):
    """An operation on a local path failed."""

    path: str
    reason: str
    errno: int | None = None

    def _message(self) -> str:
        return f"{self.reason}: {self.path}"

    def _hint(self) -> str:
        return _ERRNO_HINTS.get(self.errno or 0, "")


class CacheError(_LocalError):
    """The cache cannot be read or written."""

    exit_code = 30

    def _message(self) -> str:
        return f"cache: {super()._message()}"


class LockLost(CacheError):
    """This process gave no sign of life for so long that somebody else has taken over what it was doing."""

    def _hint(self) -> str:
        return "Nothing is damaged; try again"


class OutputError(_LocalError):
    """The destination, or the staging directory beside it, cannot be written."""

    exit_code = 31

    def _message(self) -> str:
        return f"output: {super()._message()}"


@dataclass(eq=False)
class OutputExists(OutputError, FileExistsError):
    """The destination exists and is not to be replaced.

    Attributes:
        advice: what to do next.
    """

    advice: str = "Choose another, or replace it with --force"

    def _hint(self) -> str:
        return self.advice


# --- 40: the ranks of a job


class ClusterError(FastpullError):
    """The ranks of a job cannot work together."""

    exit_code = 40


@dataclass(eq=False)
class MpiError(ClusterError):
    """There is no MPI, or it fails."""

    reason: str
    advice: str = ""

    def _message(self) -> str:
        return f"MPI: {self.reason}"

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class Disagreement(ClusterError):
    """Ranks of one job were started with different things, or in places that collide.

    Attributes:
        reason: what differs, with the ranks.
        advice: what to do next.
    """

    reason: str
    advice: str = ""

    def _message(self) -> str:
        return self.reason

    def _hint(self) -> str:
        return self.advice


@dataclass(eq=False)
class RankFailed(ClusterError):
    """A rank could not do its part.

    Attributes:
        rank: which.
        host: where it runs.
        reason: its own error.
        cause_exit_code: of that error's family.
    """

    rank: int
    host: str
    reason: str
    cause_exit_code: int = 1

    def _message(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.reason}"


@dataclass(eq=False)
class RankLost(ClusterError):
    """Ranks have died, hang, or are cut off.

    Attributes:
        ranks: which, each with its host.
        seconds: for so long nothing was heard of them, or nothing came of them.
        doing: what was waited for.
    """

    ranks: tuple[str, ...]
    seconds: float
    doing: str

    def _message(self) -> str:
        return f"nothing from {', '.join(self.ranks)} for {self.seconds:.0f} s, while {self.doing}"

    def _hint(self) -> str:
        return "Look for what has become of them; what was downloaded stays in the caches, and is not fetched again"


@dataclass(eq=False)
class OutputDiffers(ClusterError):
    """Ranks that made the same file together have made different ones.

    Attributes:
        source: the image.
        makers: for each of the different files the ranks that made it, in words.
    """

    source: str
    makers: tuple[str, ...]

    def _message(self) -> str:
        files = ", another that of ".join(self.makers)
        return f"the nodes have made different files of {self.source}: one is that of {files}"

    def _hint(self) -> str:
        return (
            "The memory or the disk of the node that differs is at fault, or its processor compresses to other bytes; "
            "it has published nothing"
        )


_ERRNO_HINTS = {
    errno.ENOSPC: "Free some space, or choose a place on another filesystem",
    errno.EDQUOT: "The disk quota is used up",
    errno.EACCES: "Check the permissions, or choose another place",
    errno.EROFS: "The filesystem is mounted read-only; choose another place",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f), or choose a place on a filesystem that takes larger files",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENOLCK: "Choose another filesystem (--cache), or have this one mounted with locks that hold between nodes",
}


Local = TypeVar("Local", CacheError, OutputError)


def from_os_error(family: type[Local], error: OSError, path: str | bytes | None = None) -> Local:
    """Translates an operating-system error, naming the path at fault."""
    culprit = path if path is not None else error.filename
    text = printable(os.fsencode(culprit)) if isinstance(culprit, str | bytes | os.PathLike) else "?"
    return family(path=text, reason=(error.strerror or str(error)).lower(), errno=error.errno)


class Border:
    """A context that foreign exceptions leave only as ours. May be entered many times, also by several at once.

    Args:
        mapping: for each foreign type the function that makes ours of it; the first that fits is taken. An error
            that is ours already passes unchanged.
    """

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Mapping[type[BaseException], Callable[[BaseException], BaseException]]) -> None:
        self._mapping = mapping

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, FastpullError):
            return
        for foreign, translate in self._mapping.items():
            if isinstance(error, foreign):
                raise translate(error) from error
