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
    from fastpull.cache.care import Cache
    from fastpull.cache.findings import CachedImage, ListedImage, Removed, RemovedImage, Usage, Verified
    from fastpull.cache.images import FinishedImage
    from fastpull.cache.pins import Holder
    from fastpull.cache.store import StoredBlob
    from fastpull.client import Client, WarmReport, pull
    from fastpull.cluster.cluster import Cluster
    from fastpull.cluster.council import ClusterTerms
    from fastpull.cluster.mpi import MpiFabric, open_mpi
    from fastpull.cluster.report import ClusterReport, NodeReport
    from fastpull.config import (
        ACCESS,
        LIMITS,
        SETTINGS,
        Access,
        Effective,
        Limits,
        Setting,
        Settings,
        effective_settings,
    )
    from fastpull.engine import PullReport
    from fastpull.importer import Importer
    from fastpull.meter import StageTime
    from fastpull.metrics import METRICS, Metrics
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.digest import Digest
    from fastpull.oci.image import Image, ImageConfig, Layer
    from fastpull.oci.manifest import Manifest
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference
    from fastpull.registry.keyring import Keyring, Place, Search
    from fastpull.runtimes.base import Additions, Dialect, File, Folder, Frame
    from fastpull.runtimes.choose import RUNTIMES
    from fastpull.runtimes.edf import EnvironmentFile
    from fastpull.runtimes.enroot_command import EnrootSettings, EnrootUri
    from fastpull.secret import Secret
    from fastpull.settingcheck import check_settings
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sinks.choose import sink_for
    from fastpull.sinks.directory import Directory
    from fastpull.sinks.squashfs.assembly import SquashfsReport
    from fastpull.sinks.squashfs.recipe import Recipe
    from fastpull.sinks.squashfs.sink import Squashfs
    from fastpull.sinks.tar import Tar
    from fastpull.trace import Trace
    from fastpull.tracefile import TraceFile
    from fastpull.values import parse_age, parse_size

__version__ = "0.1.0"

_HOMES = {
    "ACCESS": "fastpull.config",
    "LIMITS": "fastpull.config",
    "METRICS": "fastpull.metrics",
    "SETTINGS": "fastpull.config",
    "Access": "fastpull.config",
    "Additions": "fastpull.runtimes.base",
    "Bottleneck": "fastpull.bottleneck",
    "Cache": "fastpull.cache.care",
    "CachedImage": "fastpull.cache.findings",
    "Client": "fastpull.client",
    "Cluster": "fastpull.cluster.cluster",
    "ClusterReport": "fastpull.cluster.report",
    "ClusterTerms": "fastpull.cluster.council",
    "Descriptor": "fastpull.oci.descriptor",
    "Dialect": "fastpull.runtimes.base",
    "Digest": "fastpull.oci.digest",
    "Directory": "fastpull.sinks.directory",
    "Effective": "fastpull.config",
    "EnrootSettings": "fastpull.runtimes.enroot_command",
    "EnrootUri": "fastpull.runtimes.enroot_command",
    "EnvironmentFile": "fastpull.runtimes.edf",
    "File": "fastpull.runtimes.base",
    "FinishedImage": "fastpull.cache.images",
    "Folder": "fastpull.runtimes.base",
    "Frame": "fastpull.runtimes.base",
    "Holder": "fastpull.cache.pins",
    "Image": "fastpull.oci.image",
    "ImageConfig": "fastpull.oci.image",
    "Importer": "fastpull.importer",
    "Keyring": "fastpull.registry.keyring",
    "Layer": "fastpull.oci.image",
    "Limits": "fastpull.config",
    "ListedImage": "fastpull.cache.findings",
    "Manifest": "fastpull.oci.manifest",
    "Metrics": "fastpull.metrics",
    "MpiFabric": "fastpull.cluster.mpi",
    "NodeReport": "fastpull.cluster.report",
    "Place": "fastpull.registry.keyring",
    "Platform": "fastpull.oci.platform",
    "PullReport": "fastpull.engine",
    "RUNTIMES": "fastpull.runtimes.choose",
    "Recipe": "fastpull.sinks.squashfs.recipe",
    "Reference": "fastpull.oci.reference",
    "Removed": "fastpull.cache.findings",
    "RemovedImage": "fastpull.cache.findings",
    "Search": "fastpull.registry.keyring",
    "Secret": "fastpull.secret",
    "Setting": "fastpull.config",
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
    "Usage": "fastpull.cache.findings",
    "Verified": "fastpull.cache.findings",
    "WarmReport": "fastpull.client",
    "check_settings": "fastpull.settingcheck",
    "effective_settings": "fastpull.config",
    "open_mpi": "fastpull.cluster.mpi",
    "parse_age": "fastpull.values",
    "parse_size": "fastpull.values",
    "pull": "fastpull.client",
    "sink_for": "fastpull.sinks.choose",
}

__all__ = [
    "ACCESS",
    "LIMITS",
    "METRICS",
    "RUNTIMES",
    "SETTINGS",
    "Access",
    "Additions",
    "Bottleneck",
    "Cache",
    "CachedImage",
    "Client",
    "Cluster",
    "ClusterReport",
    "ClusterTerms",
    "Descriptor",
    "Dialect",
    "Digest",
    "Directory",
    "Effective",
    "EnrootSettings",
    "EnrootUri",
    "EnvironmentFile",
    "File",
    "FinishedImage",
    "Folder",
    "Frame",
    "Holder",
    "Image",
    "ImageConfig",
    "Importer",
    "Keyring",
    "Layer",
    "Limits",
    "ListedImage",
    "Manifest",
    "Metrics",
    "MpiFabric",
    "NodeReport",
    "Place",
    "Platform",
    "PullReport",
    "Recipe",
    "Reference",
    "Removed",
    "RemovedImage",
    "Search",
    "Secret",
    "Setting",
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
    "check_settings",
    "effective_settings",
    "open_mpi",
    "parse_age",
    "parse_size",
    "pull",
    "sink_for",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
