"""Content that is damaged, malformed, unsupported or too large."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.errors.base import FastpullError, printable

# --- 20: integrity


class IntegrityError(FastpullError):
    """Bytes do not match their descriptor."""

    exit_code = 20


@dataclass(eq=False)
class DigestMismatch(IntegrityError):
    """A blob's digest differs from its descriptor's."""

    subject: str
    expected: str
    actual: str

    def _message(self) -> str:
        return f"got digest {self.actual}, expected {self.expected} for: {self.subject}"

    def _hint(self) -> str:
        return "The bytes changed at the source, on the way or in the cache; fastpull kept nothing. Try again"


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
    """An uncompressed layer's digest differs from the diff_id in the image's config."""

    subject: str
    expected: str
    actual: str

    def _message(self) -> str:
        return f"got diff_id {self.actual}, expected {self.expected} for layer: {self.subject}"

    def _hint(self) -> str:
        return "The image's config does not match its layers; its publisher must build it again"


@dataclass(eq=False)
class FrameDamaged(IntegrityError):
    """A frame changed on its way between two ranks."""

    sender: str
    offset: int
    size: int

    def _message(self) -> str:
        return f"bytes {self.offset} to {self.offset + self.size} of a blob changed on the way from {self.sender}"

    def _hint(self) -> str:
        return "Check the network, its driver and the memory of the two nodes; fastpull kept nothing of it"


@dataclass(eq=False)
class LayerBlocksDamaged(IntegrityError):
    """Layer blocks from another rank do not match their own description."""

    subject: str
    reason: str

    def _message(self) -> str:
        return f"layer blocks of {self.subject} from another node are damaged: {self.reason}"

    def _hint(self) -> str:
        return "Check the memory and the disks of the nodes, and the network between them; fastpull kept nothing"


# --- 21 to 24: what is in the image


@dataclass(eq=False)
class UnsupportedMediaType(FastpullError):
    """A well-formed object cannot become a root filesystem."""

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
    """A layer's compressed stream is corrupt, truncated, or has trailing data."""

    exit_code = 22
    subject: str
    reason: str

    def _message(self) -> str:
        return f"cannot decompress ({self.reason}) layer: {self.subject}"


@dataclass(eq=False)
class TarError(FastpullError):
    """A layer is not a well-formed tar archive, or is one that readers interpret differently.

    Attributes:
        offset: the offset of the faulty header in the uncompressed layer, in bytes.
        culprit: the faulty name, if known.
        after: the path of the preceding entry.
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
    """An entry of a layer is refused: it leaves the root, or has no meaning at its place."""

    exit_code = 24
    subject: str
    reason: str
    path: bytes

    def _message(self) -> str:
        return f"{self.reason}: {printable(self.path)!r} in layer: {self.subject}"


@dataclass(eq=False)
class LimitExceeded(FastpullError):
    """A layer exceeds a limit of disk, memory or time.

    Attributes:
        limit: the exceeded limit, with its number.
        path: the path of the entry that exceeded it, if known.
        setting: the setting that raises the limit; empty for a limit of a format or the kernel.
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
            return "No setting raises this limit; the image's publisher must build it again"
        flag = self.setting.replace("_", "-")
        return f"If you trust the image, raise the limit with --{flag} or FASTPULL_{self.setting.upper()}"
