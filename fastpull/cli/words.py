"""Values as text for terminals, and as plain data for JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import fastpull
from fastpull.errors import printable

if TYPE_CHECKING:
    from fastpull.errors import FastpullError


def size_of(count: float) -> str:
    """Return a number of bytes as text: ``752.3 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield lines with columns of equal width; control characters in cells are escaped."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def age_of(when: float) -> str:
    """Return the time since a timestamp as text: ``3 hours ago``."""
    seconds = max(0, time.time() - when)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, fastpull.Digest | fastpull.Platform | fastpull.Reference | fastpull.config.Secret):
        return str(value)
    if isinstance(value, fastpull.Image):
        return image_summary(value)
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": str(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def error_summary(error: FastpullError) -> dict[str, Any]:
    """Return an error as JSON can hold it."""
    return {"type": type(error).__name__, "exit_code": error.exit_code, "message": str(error)}


def image_summary(image: fastpull.Image) -> dict[str, Any]:
    """Return an image as JSON can hold it."""
    config = image.config
    return {
        "source": image.source,
        "digest": str(image.digest),
        "media_type": image.manifest.media_type,
        "platform": str(image.platform),
        "created": config.created,
        "size": image.size,
        "layers": [
            {
                "digest": str(layer.blob.digest),
                "media_type": layer.blob.media_type,
                "size": layer.blob.size,
                "diff_id": str(layer.diff_id),
            }
            for layer in image.layers
        ],
        "config": {
            "digest": str(image.manifest.config.digest),
            "user": config.user,
            "working_dir": config.working_dir,
            "env": list(config.env),
            "entrypoint": list(config.entrypoint),
            "cmd": list(config.cmd),
            "labels": dict(config.labels),
        },
    }
