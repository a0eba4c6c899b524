"""Pins: finished images that somebody uses, so that nothing removes them.

::

    <root>/v1/pins/<host>.<job>.<step>.<hash of the image's name>    a line of JSON

A pin lasts until it is released, at most as long as whoever looks after the cache allows, and not beyond its host's
next boot. Every method blocks.
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
"""By default a pin that is older is taken for one that nobody will release any more: no job lasts so long."""

_WORD = re.compile(r"[A-Za-z0-9_+-]{1,64}")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who uses images: one step of one job on one host.

    Raises:
        InvalidSetting: job or step cannot be a part of a file's name.
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
        """A step on this host."""
        return cls(os.uname().nodename, job, step)

    @property
    def prefix(self) -> str:
        """That the names of its pins begin with."""
        host = re.sub(r"[^A-Za-z0-9_.-]", "_", self.host)[:64].lstrip(".")
        return f"{host}.{self.job}.{self.step}."

    def __str__(self) -> str:
        return f"step {self.job}.{self.step} on {self.host}"


@dataclass(frozen=True, slots=True)
class Pin:
    """One image that one holder uses.

    Attributes:
        holder: who.
        image: name of the finished image's key.
        boot: of the host.
        time: when it was made, in seconds since the epoch.
    """

    holder: Holder
    image: str
    boot: str
    time: float

    def is_expired(self, max_age_seconds: float) -> bool:
        """Whether its holder is known to have ended, or has to be taken for that."""
        rebooted = self.holder.host == os.uname().nodename and self.boot != boot_id()
        return rebooted or time.time() - self.time > max_age_seconds


class Pins:
    """The pins of a cache.

    Args:
        files: of the cache.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files
        self._directory = os.path.join(files.root, "pins")

    def add(self, holder: Holder, image: str) -> bool:
        """Pins an image, before one looks whether it is there. May be called twice; says whether it is new."""
        path = self._path(holder, image)
        is_new = self._files.lookup(path) is None
        pin = Pin(holder, image, boot_id(), time.time())
        self._files.write(path, checksummed_json.to_bytes(asdict(pin)), mode=self._files.note_mode)
        return is_new

    def release(self, holder: Holder, image: str | None = None) -> None:
        """Removes a holder's pins, or the one of an image. May be called twice."""
        for _, name, _ in self._files.entries("pins", nested=False):
            path = os.path.join(self._directory, name)
            if name.startswith(holder.prefix) and (image is None or path == self._path(holder, image)):
                self._files.unlink(path)

    def active(self, max_age_seconds: float = MAX_PIN_SECONDS) -> dict[str, list[Pin]]:
        """The pins that count, by the names of their images."""
        found: dict[str, list[Pin]] = {}
        for _, pin in self._all():
            if pin is not None and not pin.is_expired(max_age_seconds):
                found.setdefault(pin.image, []).append(pin)
        return found

    def remove_expired(self, max_age_seconds: float = MAX_PIN_SECONDS) -> None:
        """Removes the pins that do not count any more, and files that are none."""
        for path, pin in self._all():
            if pin is None or pin.is_expired(max_age_seconds):
                with contextlib.suppress(CacheError):  # another user's
                    self._files.remove(path)

    def _all(self) -> Iterator[tuple[str, Pin | None]]:
        for _, name, _ in self._files.entries("pins", nested=False):
            path = os.path.join(self._directory, name)
            try:
                content = self._files.read(path)
            except CacheError:
                continue  # another user's, who keeps it to themselves
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
