"""fastpull: turn a container image into a root filesystem in one pass.

For scripts::

    fastpull.pull("debian:12", "rootfs/")

For programs::

    async with fastpull.Client(on_event=print) as client:
        image = await client.resolve("nvcr.io/nvidia/pytorch:24.01-py3", platform="linux/amd64")
        await client.pull(image, fastpull.Directory("rootfs", force=True))
        await client.pull(image, fastpull.Tar("image.tar"))
        await client.warm(["docker.io/library/debian:12", "quay.io/fedora/fedora:41"], jobs=2)

The names here are those that most programs need. The others are in the packages: ``fastpull.cache``,
``fastpull.cluster``, ``fastpull.config``, ``fastpull.metrics``, ``fastpull.oci``, ``fastpull.pipeline``,
``fastpull.progress``, ``fastpull.registry``, ``fastpull.runtimes``, ``fastpull.sinks`` and ``fastpull.telemetry``.
Names and packages are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face
from fastpull._version import __version__ as __version__

if TYPE_CHECKING:
    # isort: off
    from fastpull import (
        cache as cache,
        cluster as cluster,
        config as config,
        errors as errors,
        metrics as metrics,
        oci as oci,
        pipeline as pipeline,
        progress as progress,
        registry as registry,
        runtimes as runtimes,
        sinks as sinks,
        telemetry as telemetry,
    )

    # isort: on
    from fastpull.cache import FinishedImage
    from fastpull.client import Client, WarmReport, pull
    from fastpull.cluster import Cluster
    from fastpull.config import Settings
    from fastpull.importer import Importer
    from fastpull.oci import Descriptor, Digest, Image, Platform, Reference
    from fastpull.pipeline import PullReport
    from fastpull.sinks import Directory, Sink, Squashfs, Tar, sink_for
    from fastpull.telemetry import Trace

__all__ = [
    "Client",
    "Cluster",
    "Descriptor",
    "Digest",
    "Directory",
    "FinishedImage",
    "Image",
    "Importer",
    "Platform",
    "PullReport",
    "Reference",
    "Settings",
    "Sink",
    "Squashfs",
    "Tar",
    "Trace",
    "WarmReport",
    "__version__",
    "errors",
    "pull",
    "sink_for",
]

_FORMER = {
    "ACCESS": "fastpull.config:ACCESS",
    "Access": "fastpull.config:Access",
    "Additions": "fastpull.runtimes:Additions",
    "Bottleneck": "fastpull.telemetry:Bottleneck",
    "Cache": "fastpull.cache:CacheManager",
    "CacheManager": "fastpull.cache:CacheManager",
    "CachedImage": "fastpull.cache:CachedImage",
    "ClusterReport": "fastpull.cluster:ClusterReport",
    "ClusterTerms": "fastpull.cluster:ClusterTerms",
    "CredentialLocation": "fastpull.registry:CredentialLocation",
    "CredentialSearch": "fastpull.registry:CredentialSearch",
    "Dialect": "fastpull.runtimes:RuntimeProfile",
    "Effective": "fastpull.config:Effective",
    "EnrootSettings": "fastpull.runtimes:EnrootSettings",
    "EnrootUri": "fastpull.runtimes:EnrootUri",
    "EnvironmentFile": "fastpull.runtimes:EnvironmentFile",
    "AddedDirectory": "fastpull.runtimes:AddedDirectory",
    "AddedFile": "fastpull.runtimes:AddedFile",
    "File": "fastpull.runtimes:AddedFile",
    "Folder": "fastpull.runtimes:AddedDirectory",
    "Frame": "fastpull.runtimes:OutputShape",
    "Holder": "fastpull.cache:Holder",
    "ImageConfig": "fastpull.oci:ImageConfig",
    "Keyring": "fastpull.registry:Keyring",
    "LIMITS": "fastpull.config:LIMITS",
    "Layer": "fastpull.oci:Layer",
    "Limits": "fastpull.config:Limits",
    "ListedImage": "fastpull.cache:ListedImage",
    "METRICS": "fastpull.metrics:METRICS",
    "Manifest": "fastpull.oci:Manifest",
    "Metrics": "fastpull.metrics:Metrics",
    "MpiFabric": "fastpull.cluster:MpiFabric",
    "NodeReport": "fastpull.cluster:NodeReport",
    "OutputShape": "fastpull.runtimes:OutputShape",
    "Place": "fastpull.registry:CredentialLocation",
    "RUNTIMES": "fastpull.runtimes:RUNTIMES",
    "Recipe": "fastpull.sinks:Recipe",
    "Removed": "fastpull.cache:Removed",
    "RemovedImage": "fastpull.cache:RemovedImage",
    "RuntimeProfile": "fastpull.runtimes:RuntimeProfile",
    "SETTINGS": "fastpull.config:SETTINGS",
    "Search": "fastpull.registry:CredentialSearch",
    "Secret": "fastpull.config:Secret",
    "Setting": "fastpull.config:Setting",
    "SinkReport": "fastpull.sinks:SinkReport",
    "SquashfsReport": "fastpull.sinks:SquashfsReport",
    "StageTime": "fastpull.telemetry:StageTime",
    "StoredBlob": "fastpull.cache:StoredBlob",
    "TraceFile": "fastpull.sinks:TraceFile",
    "Usage": "fastpull.cache:Usage",
    "Verified": "fastpull.cache:Verified",
    "check_settings": "fastpull.pipeline:check_settings",
    "effective_settings": "fastpull.config:effective_settings",
    "open_mpi": "fastpull.cluster:open_mpi",
    "parse_age": "fastpull.config:parse_age",
    "parse_size": "fastpull.config:parse_size",
}
"""Names that this package had before, and where they are now."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.errors": (),
            "fastpull.metrics": (),
            "fastpull.progress": (),
            "fastpull.registry": (),
            "fastpull.runtimes": (),
            "fastpull.cache": ("FinishedImage",),
            "fastpull.client": (
                "Client",
                "WarmReport",
                "pull",
            ),
            "fastpull.cluster": ("Cluster",),
            "fastpull.config": ("Settings",),
            "fastpull.importer": ("Importer",),
            "fastpull.oci": (
                "Descriptor",
                "Digest",
                "Image",
                "Platform",
                "Reference",
            ),
            "fastpull.pipeline": ("PullReport",),
            "fastpull.sinks": (
                "Directory",
                "Sink",
                "Squashfs",
                "Tar",
                "sink_for",
            ),
            "fastpull.telemetry": ("Trace",),
        },
        _FORMER,
    )
