"""Content that is damaged, malformed, unsupported or too large."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.errors.base import FastpullError, printable

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
class FrameDamaged(IntegrityError):
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
class LayerBlocksDamaged(IntegrityError):
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
