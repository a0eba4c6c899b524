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

from fastpull._version import __version__ as __version__

if TYPE_CHECKING:
    from fastpull.cache.images.pins import Holder
    from fastpull.cache.images.store import FinishedImage
    from fastpull.cache.maintenance.manager import CacheManager
    from fastpull.cache.maintenance.reports import CachedImage, ListedImage, Removed, RemovedImage, Usage, Verified
    from fastpull.cache.store import StoredBlob
    from fastpull.client import Client, WarmReport, pull
    from fastpull.cluster.control.channel import ClusterTerms
    from fastpull.cluster.root.cluster import Cluster
    from fastpull.cluster.root.report import ClusterReport, NodeReport
    from fastpull.cluster.transport.mpi import MpiFabric, open_mpi
    from fastpull.config.access import Access
    from fastpull.config.limits import Limits
    from fastpull.config.schema import Setting
    from fastpull.config.secret import Secret
    from fastpull.config.settings import ACCESS, LIMITS, SETTINGS, Effective, Settings, effective_settings
    from fastpull.config.units import parse_age, parse_size
    from fastpull.importer import Importer
    from fastpull.metrics import METRICS, Metrics
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.digest import Digest
    from fastpull.oci.image import Image, ImageConfig, Layer
    from fastpull.oci.manifest import Manifest
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference
    from fastpull.pipeline.report import PullReport
    from fastpull.pipeline.settings_check import check_settings
    from fastpull.registry.auth.keyring import CredentialLocation, CredentialSearch, Keyring
    from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions, OutputShape, RuntimeProfile
    from fastpull.runtimes.choose import RUNTIMES
    from fastpull.runtimes.edf import EnvironmentFile
    from fastpull.runtimes.enroot_command import EnrootSettings, EnrootUri
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sinks.choose import sink_for
    from fastpull.sinks.directory.sink import Directory
    from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
    from fastpull.sinks.squashfs.recipe import Recipe
    from fastpull.sinks.squashfs.sink import Squashfs
    from fastpull.sinks.tar.sink import Tar
    from fastpull.sinks.trace_file import TraceFile
    from fastpull.telemetry.bottleneck import Bottleneck
    from fastpull.telemetry.timing import StageTime
    from fastpull.telemetry.trace import Trace


_HOMES = {
    "ACCESS": "fastpull.config.settings",
    "LIMITS": "fastpull.config.settings",
    "METRICS": "fastpull.metrics",
    "SETTINGS": "fastpull.config.settings",
    "Access": "fastpull.config.access",
    "Additions": "fastpull.runtimes.base",
    "Bottleneck": "fastpull.telemetry.bottleneck",
    "CacheManager": "fastpull.cache.maintenance.manager",
    "CachedImage": "fastpull.cache.maintenance.reports",
    "Client": "fastpull.client",
    "Cluster": "fastpull.cluster.root.cluster",
    "ClusterReport": "fastpull.cluster.root.report",
    "ClusterTerms": "fastpull.cluster.control.channel",
    "Descriptor": "fastpull.oci.descriptor",
    "RuntimeProfile": "fastpull.runtimes.base",
    "Digest": "fastpull.oci.digest",
    "Directory": "fastpull.sinks.directory.sink",
    "Effective": "fastpull.config.settings",
    "EnrootSettings": "fastpull.runtimes.enroot_command",
    "EnrootUri": "fastpull.runtimes.enroot_command",
    "EnvironmentFile": "fastpull.runtimes.edf",
    "AddedFile": "fastpull.runtimes.base",
    "FinishedImage": "fastpull.cache.images.store",
    "AddedDirectory": "fastpull.runtimes.base",
    "OutputShape": "fastpull.runtimes.base",
    "Holder": "fastpull.cache.images.pins",
    "Image": "fastpull.oci.image",
    "ImageConfig": "fastpull.oci.image",
    "Importer": "fastpull.importer",
    "Keyring": "fastpull.registry.auth.keyring",
    "Layer": "fastpull.oci.image",
    "Limits": "fastpull.config.limits",
    "ListedImage": "fastpull.cache.maintenance.reports",
    "Manifest": "fastpull.oci.manifest",
    "Metrics": "fastpull.metrics",
    "MpiFabric": "fastpull.cluster.transport.mpi",
    "NodeReport": "fastpull.cluster.root.report",
    "CredentialLocation": "fastpull.registry.auth.keyring",
    "Platform": "fastpull.oci.platform",
    "PullReport": "fastpull.pipeline.report",
    "RUNTIMES": "fastpull.runtimes.choose",
    "Recipe": "fastpull.sinks.squashfs.recipe",
    "Reference": "fastpull.oci.reference",
    "Removed": "fastpull.cache.maintenance.reports",
    "RemovedImage": "fastpull.cache.maintenance.reports",
    "CredentialSearch": "fastpull.registry.auth.keyring",
    "Secret": "fastpull.config.secret",
    "Setting": "fastpull.config.schema",
    "Settings": "fastpull.config.settings",
    "Sink": "fastpull.sinks.base",
    "SinkReport": "fastpull.sinks.base",
    "Squashfs": "fastpull.sinks.squashfs.sink",
    "SquashfsReport": "fastpull.sinks.squashfs.image.image_writer",
    "StageTime": "fastpull.telemetry.timing",
    "StoredBlob": "fastpull.cache.store",
    "Tar": "fastpull.sinks.tar.sink",
    "Trace": "fastpull.telemetry.trace",
    "TraceFile": "fastpull.sinks.trace_file",
    "Usage": "fastpull.cache.maintenance.reports",
    "Verified": "fastpull.cache.maintenance.reports",
    "WarmReport": "fastpull.client",
    "check_settings": "fastpull.pipeline.settings_check",
    "effective_settings": "fastpull.config.settings",
    "open_mpi": "fastpull.cluster.transport.mpi",
    "parse_age": "fastpull.config.units",
    "parse_size": "fastpull.config.units",
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
    "AddedDirectory",
    "AddedFile",
    "Additions",
    "Bottleneck",
    "CacheManager",
    "CachedImage",
    "Client",
    "Cluster",
    "ClusterReport",
    "ClusterTerms",
    "CredentialLocation",
    "CredentialSearch",
    "Descriptor",
    "Digest",
    "Directory",
    "Effective",
    "EnrootSettings",
    "EnrootUri",
    "EnvironmentFile",
    "FinishedImage",
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
    "OutputShape",
    "Platform",
    "PullReport",
    "Recipe",
    "Reference",
    "Removed",
    "RemovedImage",
    "RuntimeProfile",
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
