"""Pins: finished images in use, which nothing may remove.

::

    <root>/v1/pins/<host>.<job>.<step>.<hash of the image's name>    a line of JSON

A pin lasts until it is released, but not beyond the next boot of its host, nor beyond the maximum age. Every method
blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from fastpull.cache import checksummed_json
from fastpull.cache.blob_metadata import boot_id
from fastpull.errors import CacheError, InvalidSetting
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.files import CacheFiles

MAX_PIN_SECONDS = 30 * 86400.0
"""Default age after which a pin counts as abandoned; no job lasts so long."""

_WORD = re.compile(r"[A-Za-z0-9_+-]{1,64}")


@dataclass(frozen=True, slots=True)
class Holder:
    """A user of images: one step of one job on one host.

    Raises:
        InvalidSetting: job or step cannot be part of a file name.
    """

    host: str
    job: str
    step: str

    def __post_init__(self) -> None:
        for what, word in (("job", self.job), ("step", self.step)):
            if not _WORD.fullmatch(word):
                raise InvalidSetting(word, f"not the id of a {what}")

    @classmethod
    def here(cls, job: str, step: str) -> Self:
        """Return a step on this host."""
        return cls(os.uname().nodename, job, step)

    @property
    def prefix(self) -> str:
        """Prefix of the names of its pins."""
        host = re.sub(r"[^A-Za-z0-9_.-]", "_", self.host)[:64].lstrip(".")
        return f"{host}.{self.job}.{self.step}."

    def __str__(self) -> str:
        return f"step {self.job}.{self.step} on {self.host}"


@dataclass(frozen=True, slots=True)
class Pin:
    """The use of one image by one holder.

    Attributes:
        holder: step that uses the image.
        image: name of the finished image's key.
        boot: boot ID of the host.
        time: creation time, in seconds since the epoch.
    """

    holder: Holder
    image: str
    boot: str
    time: float

    def is_expired(self, max_age_seconds: float) -> bool:
        """Return whether its holder has ended, or counts as ended."""
        rebooted = self.holder.host == os.uname().nodename and self.boot != boot_id()
        return rebooted or time.time() - self.time > max_age_seconds


class Pins:
    """The pins of a cache.

    Args:
        files: files of the cache.

    Raises:
        CacheError: from every method; the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files
        self._directory = os.path.join(files.root, "pins")

    def add(self, holder: Holder, image: str) -> bool:
        """Pin an image, and return whether the pin is new. Call it before looking for the image."""
        path = self._path(holder, image)
        is_new = self._files.lookup(path) is None
        pin = Pin(holder, image, boot_id(), time.time())
        self._files.write(path, checksummed_json.to_bytes(asdict(pin)), mode=self._files.note_mode)
        return is_new

    def release(self, holder: Holder, image: str | None = None) -> None:
        """Remove the pins of a holder, or only that of one image. May be called twice."""
        for _, name, _ in self._files.entries("pins", nested=False):
            path = os.path.join(self._directory, name)
            if name.startswith(holder.prefix) and (image is None or path == self._path(holder, image)):
                self._files.unlink(path)

    def active(self, max_age_seconds: float = MAX_PIN_SECONDS) -> dict[str, list[Pin]]:
        """Return the pins that count, by image name."""
        found: dict[str, list[Pin]] = {}
        for _, pin in self._all():
            if pin is not None and not pin.is_expired(max_age_seconds):
                found.setdefault(pin.image, []).append(pin)
        return found

    def remove_expired(self, max_age_seconds: float = MAX_PIN_SECONDS) -> None:
        """Remove expired pins and damaged files."""
        for path, pin in self._all():
            if pin is None or pin.is_expired(max_age_seconds):
                with contextlib.suppress(CacheError):  # another user owns it
                    self._files.remove(path)

    def _all(self) -> Iterator[tuple[str, Pin | None]]:
        for _, name, _ in self._files.entries("pins", nested=False):
            path = os.path.join(self._directory, name)
            try:
                content = self._files.read(path)
            except CacheError:
                continue  # not readable for this user
            if content is not None or self._files.lookup(path) is not None:
                yield path, _pin(content or b"")

    def _path(self, holder: Holder, image: str) -> str:
        return os.path.join(self._directory, holder.prefix + Digest.of(image.encode()).encoded[:32])


def _pin(content: bytes) -> Pin | None:
    try:
        value = checksummed_json.from_bytes(content)
        return Pin(Holder(**value["holder"]), str(value["image"]), str(value["boot"]), float(value["time"]))
    except (ValueError, KeyError, TypeError, InvalidSetting):
        return None
