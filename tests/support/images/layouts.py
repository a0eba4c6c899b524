"""OCI layouts on disk: read their contents, and write one from generated layers."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastpull.layers.archive import END, header_of, padding_of
from fastpull.layers.entry import Entry
from tests.support.setup_errors import SetupError

TAG = "bench"

Members = Iterable[tuple[Entry, Iterable[bytes]]]

_LEVEL = 6
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_BATCH = 256 << 10


@dataclass(frozen=True, slots=True)
class Layout:
    """An image in an OCI layout.

    Attributes:
        name: display name.
        path: path of the layout.
        tag: tag of the image in its index.
    """

    name: str
    path: str
    tag: str

    def __str__(self) -> str:
        return f"oci:{self.path}:{self.tag}"

    def blobs(self) -> list[str]:
        """Return the paths of the layer blobs, from the base to the top.

        Raises:
            SetupError: The layout or the tag does not exist.
        """
        digests = [str(layer["digest"]) for layer in self.facts()["layers"]]
        return [os.path.join(self.path, "blobs", *digest.split(":")) for digest in digests]

    def facts(self) -> dict[str, Any]:
        """Return name, manifest digest, layers and size of the image, for a report.

        Raises:
            SetupError: The layout or the tag does not exist.
        """
        try:
            manifests = self._read("index.json")["manifests"]
            digest = next(
                entry["digest"]
                for entry in manifests
                if entry.get("annotations", {}).get("org.opencontainers.image.ref.name") == self.tag
            )
            layers = self._read("blobs", *digest.split(":"))["layers"]
        except (OSError, ValueError, KeyError, StopIteration) as error:
            raise SetupError(f"cannot read an image at {self} ({type(error).__name__}: {error})") from error
        return {
            "name": self.name,
            "manifest": digest,
            "compressed_bytes": sum(layer["size"] for layer in layers),
            "layers": [{key: layer[key] for key in ("mediaType", "digest", "size")} for layer in layers],
        }

    def _read(self, *parts: str) -> Any:
        with open(os.path.join(self.path, *parts), encoding="utf-8") as file:
            return json.load(file)


def write_layout(path: str, layers: Iterable[Members], level: int = _LEVEL) -> None:
    """Write an image of gzip layers; equal layers always give equal images.

    Args:
        path: path of the layout to create.
        layers: entries with payload for each layer, from the base to the top; each is read once, in order.
        level: compression level; image builders use 6.
    """
    blobs = os.path.join(path, "blobs", "sha256")
    os.makedirs(blobs)
    descriptors, diff_ids = [], []
    for members in layers:
        descriptor, diff_id = _write_layer(blobs, members, level)
        descriptors.append(descriptor)
        diff_ids.append(diff_id)
    config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _write_json(blobs, config, _CONFIG),
        "layers": descriptors,
    }
    entry = _write_json(blobs, manifest, _MANIFEST)
    entry["annotations"] = {"org.opencontainers.image.ref.name": TAG}
    for name, content in (
        ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
        ("index.json", {"schemaVersion": 2, "manifests": [entry]}),
    ):
        with open(os.path.join(path, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


def _write_json(blobs: str, content: dict[str, Any], media_type: str) -> dict[str, Any]:
    body = json.dumps(content).encode()
    digest = hashlib.sha256(body).hexdigest()
    with open(os.path.join(blobs, digest), "wb") as file:
        file.write(body)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(body)}


def _write_layer(blobs: str, members: Members, level: int) -> tuple[dict[str, Any], str]:
    """Write the blob of a layer, and return its descriptor and its diff_id."""
    compressor = zlib.compressobj(level, wbits=31)
    diff_id, digest, size = hashlib.sha256(), hashlib.sha256(), 0
    unnamed = os.path.join(blobs, "layer")
    with open(unnamed, "wb") as file:
        for batch in _batches(members):
            diff_id.update(batch)
            packed = compressor.compress(batch)
            digest.update(packed)
            size += file.write(packed)
        packed = compressor.flush()
        digest.update(packed)
        size += file.write(packed)
    os.rename(unnamed, os.path.join(blobs, digest.hexdigest()))
    descriptor = {"mediaType": _LAYER, "digest": f"sha256:{digest.hexdigest()}", "size": size}
    return descriptor, f"sha256:{diff_id.hexdigest()}"


def _batches(members: Members) -> Iterator[bytes]:
    """Yield the tar of a layer in batches of at least 256 KiB."""
    batch = bytearray()
    for entry, payload in members:
        batch += header_of(entry)
        for piece in payload:
            batch += piece
            if len(batch) >= _BATCH:
                yield bytes(batch)
                batch.clear()
        batch += padding_of(entry.size)
    yield bytes(batch) + END
