"""OCI layouts on the disk: what is in one, and writing one of generated layers."""

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
        name: for people.
        path: of the layout.
        tag: in its index.
    """

    name: str
    path: str
    tag: str

    def __str__(self) -> str:
        return f"oci:{self.path}:{self.tag}"

    def blobs(self) -> list[str]:
        """The paths of the layers' blobs, from the base to the top.

        Raises:
            SetupError: there is no such image.
        """
        digests = [str(layer["digest"]) for layer in self.facts()["layers"]]
        return [os.path.join(self.path, "blobs", *digest.split(":")) for digest in digests]

    def facts(self) -> dict[str, Any]:
        """What there is to say of the image, for a report.

        Raises:
            SetupError: there is no such image.
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
            raise SetupError(f"no image at {self} ({type(error).__name__}: {error})") from error
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
    """Writes an image of gzip layers; the same layers always give the same image.

    Args:
        path: of the layout, which is made.
        layers: their entries with payload, from the base to the top; read once, one after the other.
        level: of compression; builders use 6.
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
    """Writes a layer's blob, and returns its descriptor and its diff_id."""
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
    """The layer's tar, in pieces that are worth a call."""
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
