"""The media types of images.

Spec: image-spec media-types.md; Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_FOREIGN_LAYER = "application/vnd.oci.image.layer.nondistributable.v1.tar"

DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_FOREIGN_LAYER = "application/vnd.docker.image.rootfs.foreign.diff.tar"

INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
CONFIGS = frozenset({OCI_CONFIG, DOCKER_CONFIG})
LAYERS = frozenset(
    {
        *(base + packed for base in (OCI_LAYER, OCI_FOREIGN_LAYER) for packed in ("", "+gzip", "+zstd")),
        *(base + packed for base in (DOCKER_LAYER, DOCKER_FOREIGN_LAYER) for packed in ("", ".gzip", ".zstd")),
    }
)
"""Layers are inflated by their magic bytes; the media type only marks a descriptor as a layer."""

SCHEMA_1 = frozenset(
    {
        "application/vnd.docker.distribution.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
    }
)

ACCEPT = f"{OCI_MANIFEST}, {DOCKER_MANIFEST}, {OCI_INDEX}, {DOCKER_LIST}"
"""Sent with every request for a manifest: some registries answer 404 for a type that is not listed."""


def essence(content_type: str) -> str:
    """Return a media type without its parameters, in lower case. Spec: RFC 9110, 8.3.1."""
    return content_type.partition(";")[0].strip().lower()
