"""Docker archives, as ``docker save`` and ``podman save`` write them: ``manifest.json``, a config, layers as tars.

They have neither a manifest with a digest nor blobs. Here, the blob of a layer is its tar as stored in the archive. A
plain tar has its diff_id as digest, verified during reading; a compressed one is hashed first. The manifest is derived
from config and layers, and is always the same for the same archive.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import check_stopped, in_thread
from fastpull.config.policy import Identity
from fastpull.errors import InvalidReference, InvalidSource, MalformedDocument, NotFound
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.oci.image import ImageConfig
from fastpull.oci.json import JsonDocument
from fastpull.oci.reference import Reference
from fastpull.sources.resolve import FetchedDocument, checked, resolve_image

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.sources.archive import Archive
    from fastpull.sources.base import Blob
    from fastpull.sources.files import FileExtent
    from fastpull.telemetry.timing import TimingScope

_CONFIG_NAME = re.compile(r"(?:.*/)?(?:sha256:)?([0-9a-f]{64})(?:\.json)?")
_PACKED = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
_HASHED = 1 << 20
_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class DockerArchiveReference:
    """``FILE[:REF|:@NUMBER]``. The file name ends at the first colon, as in skopeo and podman.

    Attributes:
        path: path of the archive.
        wanted: name of an image in it, or ``@`` and its number, from 0; empty for the only image.
    """

    path: str
    wanted: str = ""

    @classmethod
    def parse(cls, text: str) -> DockerArchiveReference:
        """Parse the text after ``docker-archive:``.

        Raises:
            InvalidReference: a part is empty or malformed.
        """
        path, colon, wanted = text.partition(":")
        if not path or (colon and not wanted):
            raise InvalidSource(text, "an empty part in a docker-archive: source")
        if wanted.startswith("@"):
            if not (wanted[1:].isascii() and wanted[1:].isdigit()):
                raise InvalidSource(text, "not the number of an image")
        elif wanted:
            Reference.parse(wanted)
        return cls(path, wanted)

    def __str__(self) -> str:
        return f"docker-archive:{self.path}{f':{self.wanted}' if self.wanted else ''}"


@dataclass(frozen=True, slots=True)
class _Stored:
    """An image in an archive.

    Attributes:
        manifest, config: documents of the image.
        blobs: paths of the layers, by digest and size.
    """

    manifest: FetchedDocument
    config: FetchedDocument
    blobs: dict[tuple[Digest, int], str]


Use = Callable[[bool], AbstractAsyncContextManager["Archive"]]
"""Type of a function that returns a context with the archive. The argument demands to open it again."""


class DockerArchiveSource:
    """An image in a docker archive, which is not trusted.

    Args:
        name: source as the user wrote it.
        wanted: see `DockerArchiveReference`.
        use: provides the archive.
        executor: threads for blocking calls on files.

    Attributes:
        identity: see `fastpull.sources.base.Source`; policies have no scopes for these transports.
    """

    def __init__(self, name: str, wanted: str, use: Use, executor: Executor) -> None:
        self.identity = Identity(name.partition(":")[0], name)
        self._name = name
        self._wanted = wanted
        self._use = use
        self._executor = executor

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`."""
        async with self._use(True) as archive:
            stored = await self._read(archive)

        async def fetch(descriptor: Descriptor) -> FetchedDocument:
            return checked(stored.config.body, descriptor, f"config of {self._name}")

        return await resolve_image(self._name, stored.manifest, platform, fetch)

    @asynccontextmanager
    async def open_blob(
        self,
        descriptor: Descriptor,
        priority: int,  # noqa: ARG002  # nothing to schedule
        timing: TimingScope,  # noqa: ARG002
    ) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        async with self._use(False) as archive:
            stored = await self._read(archive)
            path = stored.blobs.get((descriptor.digest, descriptor.size))
            if path is None:
                raise NotFound(
                    f"layer {descriptor.digest}", self._name, "The archive has changed since the image was resolved"
                )
            with archive.open(path) as extent:
                yield extent

    async def _read(self, archive: Archive) -> _Stored:
        known = archive.memo.get(self._wanted)
        if isinstance(known, _Stored):
            return known
        stopped = threading.Event()
        stored = await in_thread(
            self._executor, _read_image, archive, self._name, self._wanted, stopped.is_set, abort=stopped.set
        )
        archive.memo[self._wanted] = stored
        return stored


def _read_image(archive: Archive, name: str, wanted: str, is_stopped: Callable[[], bool]) -> _Stored:
    try:
        manifest_json = archive.open("manifest.json")
    except NotFound as error:
        advice = "It is not a docker archive; use oci-archive: for an OCI layout in a tar"
        raise NotFound("member 'manifest.json'", error.where, advice) from None
    with manifest_json as extent:
        images = JsonDocument.parse_list(extent.document(), f"manifest.json of {name}")
    entry = _choose(images, name, wanted)
    config_name, layer_names = entry.text("Config"), entry.texts("Layers")
    if len(layer_names) > _MAX_LAYERS:
        raise MalformedDocument(name, f"more than {_MAX_LAYERS} layers")
    with archive.open(config_name) as extent:
        body = extent.document()
    named = _CONFIG_NAME.fullmatch(config_name)
    config = checked(body, Digest("sha256", named[1]) if named else Digest.of(body), f"{config_name} of {name}")
    diff_ids = ImageConfig.parse(body, f"config of {name}").diff_ids
    if len(layer_names) != len(diff_ids):
        raise MalformedDocument(name, f"{len(layer_names)} layers, but {len(diff_ids)} diff_ids in the config,")
    blobs, layers = {}, []
    for path, diff_id in zip(layer_names, diff_ids, strict=True):
        with archive.open(path) as extent:
            packed = _PACKED.get(extent.read(2), "")
            digest = _digest(extent, is_stopped) if packed else diff_id
            blobs[digest, extent.size] = path
            layers.append(_descriptor(media_types.OCI_LAYER + packed, digest, extent.size))
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_types.OCI_MANIFEST,
        "config": _descriptor(media_types.OCI_CONFIG, config.digest, len(config.body)),
        "layers": layers,
    }
    raw = json.dumps(manifest, separators=(",", ":")).encode()
    return _Stored(FetchedDocument(Digest.of(raw), raw, media_types.OCI_MANIFEST), config, blobs)


def _choose(images: list[JsonDocument], name: str, wanted: str) -> JsonDocument:
    if wanted.startswith("@"):
        number = int(wanted[1:])
        if number >= len(images):
            raise NotFound(f"image {wanted}", name, f"It has {len(images)}")
        return images[number]
    tags = [tag for image in images for tag in image.texts("RepoTags")]
    found = [image for image in images if not wanted or _is_tagged(image, wanted)]
    if not found:
        advice = f"It has {', '.join(tags)}" if tags else "None of its images has a name"
        raise NotFound(f"image {wanted!r}" if wanted else "image", name, advice)
    if len(found) > 1:
        what = ", ".join(tags) or f"@0 to @{len(found) - 1}"
        raise InvalidSource(name, f"several images, choose one of {what}")
    return found[0]


def _is_tagged(image: JsonDocument, wanted: str) -> bool:
    reference = Reference.parse(wanted)
    for tag in image.texts("RepoTags"):
        try:
            if Reference.parse(tag) == reference:
                return True
        except InvalidReference:
            continue  # a malformed name matches no request
    return False


def _digest(extent: FileExtent, is_stopped: Callable[[], bool]) -> Digest:
    hasher, buffer, at = Digest.of(b"").hasher(), memoryview(bytearray(_HASHED)), 0
    while size := extent.readinto(buffer, at):
        check_stopped(is_stopped)
        hasher.update(buffer[:size])
        at += size
    return Digest.sealed(hasher)


def _descriptor(media_type: str, digest: Digest, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": str(digest), "size": size}
