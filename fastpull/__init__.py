"""fastpull: a registry image becomes a root filesystem in one pass.

For scripts::

    fastpull.pull("debian:12", "rootfs/")

For programs::

    async with fastpull.Client(on_event=print) as client:
        image = await client.resolve("nvcr.io/nvidia/pytorch:24.01-py3", platform="linux/amd64")
        await client.pull(image, fastpull.Directory("rootfs", force=True))
        await client.pull(image, fastpull.Tar("image.tar"))
        await client.warm(["docker.io/library/debian:12", "quay.io/fedora/fedora:41"], jobs=2)

Names are loaded when they are first used, so that importing fastpull costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastpull.bottleneck import Bottleneck
    from fastpull.cache.care import Cache, CachedImage, Removed, Usage, Verified
    from fastpull.cache.store import StoredBlob
    from fastpull.client import Client, WarmReport, pull
    from fastpull.config import Limits, Settings, parse_age, parse_size
    from fastpull.engine import PullReport
    from fastpull.meter import StageTime
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.digest import Digest
    from fastpull.oci.image import Image, ImageConfig, Layer
    from fastpull.oci.manifest import Manifest
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference
    from fastpull.runtimes.base import Additions, Dialect, File, Folder, Frame
    from fastpull.runtimes.choose import RUNTIMES
    from fastpull.runtimes.edf import EnvironmentFile
    from fastpull.runtimes.enroot_command import EnrootSettings, EnrootUri
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sinks.choose import sink_for
    from fastpull.sinks.directory import Directory
    from fastpull.sinks.squashfs.assembly import SquashfsReport
    from fastpull.sinks.squashfs.sink import Squashfs
    from fastpull.sinks.tar import Tar
    from fastpull.trace import Trace
    from fastpull.tracefile import TraceFile

__version__ = "0.1.0"

_HOMES = {
    "Additions": "fastpull.runtimes.base",
    "Bottleneck": "fastpull.bottleneck",
    "Cache": "fastpull.cache.care",
    "CachedImage": "fastpull.cache.care",
    "Client": "fastpull.client",
    "Descriptor": "fastpull.oci.descriptor",
    "Dialect": "fastpull.runtimes.base",
    "Digest": "fastpull.oci.digest",
    "Directory": "fastpull.sinks.directory",
    "EnrootSettings": "fastpull.runtimes.enroot_command",
    "EnrootUri": "fastpull.runtimes.enroot_command",
    "EnvironmentFile": "fastpull.runtimes.edf",
    "File": "fastpull.runtimes.base",
    "Folder": "fastpull.runtimes.base",
    "Frame": "fastpull.runtimes.base",
    "Image": "fastpull.oci.image",
    "ImageConfig": "fastpull.oci.image",
    "Layer": "fastpull.oci.image",
    "Limits": "fastpull.config",
    "Manifest": "fastpull.oci.manifest",
    "Platform": "fastpull.oci.platform",
    "PullReport": "fastpull.engine",
    "RUNTIMES": "fastpull.runtimes.choose",
    "Reference": "fastpull.oci.reference",
    "Removed": "fastpull.cache.care",
    "Settings": "fastpull.config",
    "Sink": "fastpull.sinks.base",
    "SinkReport": "fastpull.sinks.base",
    "Squashfs": "fastpull.sinks.squashfs.sink",
    "SquashfsReport": "fastpull.sinks.squashfs.assembly",
    "StageTime": "fastpull.meter",
    "StoredBlob": "fastpull.cache.store",
    "Tar": "fastpull.sinks.tar",
    "Trace": "fastpull.trace",
    "TraceFile": "fastpull.tracefile",
    "Usage": "fastpull.cache.care",
    "Verified": "fastpull.cache.care",
    "WarmReport": "fastpull.client",
    "parse_age": "fastpull.config",
    "parse_size": "fastpull.config",
    "pull": "fastpull.client",
    "sink_for": "fastpull.sinks.choose",
}

__all__ = [
    "RUNTIMES",
    "Additions",
    "Bottleneck",
    "Cache",
    "CachedImage",
    "Client",
    "Descriptor",
    "Dialect",
    "Digest",
    "Directory",
    "EnrootSettings",
    "EnrootUri",
    "EnvironmentFile",
    "File",
    "Folder",
    "Frame",
    "Image",
    "ImageConfig",
    "Layer",
    "Limits",
    "Manifest",
    "Platform",
    "PullReport",
    "Reference",
    "Removed",
    "Settings",
    "Sink",
    "SinkReport",
    "Squashfs",
    "SquashfsReport",
    "StageTime",
    "StoredBlob",
    "Tar",
    "Trace",
    "TraceFile",
    "Usage",
    "Verified",
    "WarmReport",
    "__version__",
    "parse_age",
    "parse_size",
    "pull",
    "sink_for",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
