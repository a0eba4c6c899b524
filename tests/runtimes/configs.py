"""Images without layers, for profiles that need only the config."""

from __future__ import annotations

import json
from typing import Any

from fastpull.oci import media_types
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.digest import Digest
from fastpull.oci.image import Image, ImageConfig
from fastpull.oci.manifest import Manifest

SOURCE = "docker://registry.example.org/ml/app:v1"


def image_of(source: str = SOURCE, top: dict[str, Any] | None = None, **config: Any) -> Image:
    """Return an image without layers, from a config's ``config`` and its other fields."""
    document = {"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": []}, **(top or {})}
    body = json.dumps({**document, "config": config}).encode()
    descriptor = Descriptor(media_types.OCI_CONFIG, Digest.of(body), len(body))
    manifest = Manifest(media_types.OCI_MANIFEST, descriptor, ())
    return Image(source, Digest.of(body), manifest, ImageConfig.parse(body, source))
