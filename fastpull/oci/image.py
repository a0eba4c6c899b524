"""Images: the result of resolving a reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from fastpull.errors import InvalidDigest, MalformedDocument
from fastpull.oci.digest import Digest
from fastpull.oci.json import JsonDocument
from fastpull.oci.platform import Platform

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The config of an image: platform, layers and execution parameters.

    Attributes:
        platform: platform of the image; a part that the config omits is empty.
        diff_ids: digests of the uncompressed layers, from the base to the top.
        created: RFC 3339 time, or None.
        user, working_dir, env, entrypoint, cmd, labels: execution parameters, unchanged.
        volumes, exposed_ports: execution parameters, sorted.
        stop_signal, author, os_version, os_features: as in the config.
        raw: bytes of the config.

    Spec: image-spec config.md.
    """

    platform: Platform
    diff_ids: tuple[Digest, ...]
    created: str | None
    user: str
    working_dir: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    raw: bytes = field(repr=False)
    volumes: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    stop_signal: str = ""
    author: str = ""
    os_version: str = ""
    os_features: tuple[str, ...] = ()

    @property
    def created_seconds(self) -> int:
        """`created` in whole seconds since the epoch; 0 if the config omits it, or it is not in RFC 3339."""
        try:
            created = datetime.fromisoformat(self.created or "")
        except ValueError:
            return 0
        return int(created.timestamp()) if created.tzinfo else 0

    @classmethod
    def parse(cls, body: bytes, subject: str) -> ImageConfig:
        """Parse a config.

        Raises:
            MalformedDocument: the bytes are not strict JSON, or a field violates the specification.
        """
        document = JsonDocument.parse(body, subject)
        rootfs = document.child("rootfs")
        if rootfs is None:
            document.fail("'rootfs' is missing")
        if rootfs.text_or("type", "layers") != "layers":
            rootfs.fail("a root filesystem that is not made of layers")
        try:
            diff_ids = tuple(Digest.parse(text) for text in rootfs.texts("diff_ids"))
        except InvalidDigest as error:
            rootfs.fail(error.message)
        run = document.child("config") or JsonDocument({}, subject)
        return cls(
            Platform.normalised(
                document.text_or("os", ""),
                document.text_or("architecture", ""),
                document.text_or("variant", ""),
            ),
            diff_ids,
            document.text_or("created", "") or None,
            run.text_or("User", ""),
            run.text_or("WorkingDir", ""),
            run.texts("Env"),
            run.texts("Entrypoint"),
            run.texts("Cmd"),
            tuple(run.mapping("Labels").items()),
            body,
            run.keys_of("Volumes"),
            run.keys_of("ExposedPorts"),
            run.text_or("StopSignal", ""),
            document.text_or("author", ""),
            document.text_or("os.version", ""),
            document.texts("os.features"),
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its blob, and the digest of the uncompressed blob."""

    blob: Descriptor
    diff_id: Digest


@dataclass(frozen=True, slots=True)
class Image:
    """A manifest and its config.

    Attributes:
        source: source of the image as the user gave it.
        digest: digest of the manifest.
        manifest: manifest of the image.
        config: config of the image; a missing platform is the requested one.
        warnings: omissions in the documents and their interpretation, one sentence each.
        layers: layers from the base to the top.

    Raises:
        MalformedDocument: manifest and config list different numbers of layers.
    """

    source: str
    digest: Digest
    manifest: Manifest
    config: ImageConfig
    warnings: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        blobs, diff_ids = self.manifest.layers, self.config.diff_ids
        if len(blobs) != len(diff_ids):
            raise MalformedDocument(self.source, f"{len(blobs)} layers, but {len(diff_ids)} diff_ids in the config,")
        object.__setattr__(self, "layers", tuple(map(Layer, blobs, diff_ids)))

    @property
    def platform(self) -> Platform:
        """Platform of the image."""
        return self.config.platform

    @property
    def size(self) -> int:
        """Sum of the sizes of all blobs of layers, in bytes."""
        return sum(layer.size for layer in self.manifest.layers)
