"""The nouns of the OCI specifications: pure values, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.digest import Digest
    from fastpull.oci.image import Image, ImageConfig, Layer
    from fastpull.oci.manifest import Manifest
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference

__all__ = [
    "Descriptor",
    "Digest",
    "Image",
    "ImageConfig",
    "Layer",
    "Manifest",
    "Platform",
    "Reference",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.oci.descriptor": ("Descriptor",),
            "fastpull.oci.digest": ("Digest",),
            "fastpull.oci.image": (
                "Image",
                "ImageConfig",
                "Layer",
            ),
            "fastpull.oci.manifest": ("Manifest",),
            "fastpull.oci.platform": ("Platform",),
            "fastpull.oci.reference": ("Reference",),
        },
    )
