"""The comparisons: a job, the programs that do it, and the stages that it cannot avoid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench import peers
from bench.limits import LimitStage
from bench.sources import ImageTransport
from tests.support.programs import missing
from tests.support.setup_errors import SetupError

if TYPE_CHECKING:
    from bench.peers import Peer

_ZSTD = ("-comp", "zstd", "-Xcompression-level", "1")
_ENROOT = ("-comp", "lzo", "-noD")  # enroot's default

_FETCH = (LimitStage.RECEIVE, LimitStage.HASH_BLOB, LimitStage.STORE)
_LOAD = (LimitStage.READ, LimitStage.HASH_BLOB)
_UNPACK = (LimitStage.INFLATE, LimitStage.HASH_TAR, LimitStage.SCAN)
_DIRECTORY = (*_UNPACK, LimitStage.FILES)
_SQUASHFS = (*_UNPACK, LimitStage.COMPRESS, LimitStage.BLOCKS)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A job and its peers, the programs that do it.

    Attributes:
        name: display name.
        peers: programs; all are compared with the first one.
        stages: stages of the job, for its limit; none where the link is the limit, not the machine.
        source: transport of the image.
        is_usual: whether it runs by default.
        is_download: whether the job keeps layers compressed.
    """

    name: str
    peers: tuple[Peer, ...]
    stages: tuple[LimitStage, ...] = ()
    source: ImageTransport = ImageTransport.HTTP
    is_usual: bool = False
    is_download: bool = False

    @property
    def key(self) -> str:
        """Return the name on the command line."""
        return self.name.replace(",", "").replace(" ", "-")

    def eligible(self, *, is_zstd: bool) -> Comparison:
        """Return the comparison without peers that cannot read the image, and without optional peers that are missing.

        Args:
            is_zstd: whether a layer of the image is compressed with zstd.
        """

        def can(peer: Peer) -> bool:
            return (peer.reads_zstd or not is_zstd) and not (peer.is_optional and missing(peer.programs))

        return replace(self, peers=tuple(filter(can, self.peers)))


def _download(name: str, source: ImageTransport, *more: Peer, options: tuple[str, ...] = ()) -> Comparison:
    stages = _FETCH if source is ImageTransport.HTTP else ()
    return Comparison(name, (peers.fastpull_warm(*options), peers.skopeo(), *more), stages, source, is_download=True)


COMPARISONS = (
    Comparison(
        "directory", (peers.fastpull("rootfs"), peers.umoci(), peers.podman()), (*_FETCH, *_DIRECTORY), is_usual=True
    ),
    Comparison(
        "squashfs", (peers.fastpull("image.sqsh"), peers.mksquashfs(*_ZSTD)), (*_FETCH, *_SQUASHFS), is_usual=True
    ),
    Comparison(
        "squashfs, raw",
        (peers.fastpull("image.sqsh", "--compression", "none"), peers.mksquashfs(*_ENROOT), peers.enroot()),
        (*_FETCH, *_UNPACK, LimitStage.BLOCKS),
        is_usual=True,
    ),
    Comparison(
        "squashfs, cached",
        (peers.fastpull("image.sqsh", is_cached=True), peers.mksquashfs(*_ZSTD, is_cached=True)),
        (LimitStage.READ, *_SQUASHFS),
        is_usual=True,
    ),
    Comparison("writer", (peers.writer(), peers.tar2sqfs()), source=ImageTransport.LAYOUT, is_usual=True),
    Comparison(
        "directory, cached",
        (peers.fastpull("rootfs", is_cached=True), peers.umoci(is_cached=True)),
        (LimitStage.READ, *_DIRECTORY),
    ),
    Comparison(
        "directory, layout",
        (peers.fastpull("rootfs"), peers.umoci_from_layout()),
        (*_LOAD, *_DIRECTORY),
        ImageTransport.LAYOUT,
    ),
    Comparison(
        "squashfs, layout",
        (peers.fastpull("image.sqsh"), peers.mksquashfs_from_layout(*_ZSTD)),
        (*_LOAD, *_SQUASHFS),
        ImageTransport.LAYOUT,
    ),
    Comparison("directory, tls", (peers.fastpull("rootfs", "--insecure"), peers.umoci()), (), ImageTransport.TLS),
    _download("download", ImageTransport.HTTP, peers.crane(), peers.oras()),
    _download("download, tls", ImageTransport.TLS, options=("--insecure",)),
    _download("download, 20 ms", ImageTransport.NEAR),
    _download("download, 80 ms", ImageTransport.FAR),
)


def choose(names: str) -> list[Comparison]:
    """Return the comparisons for ``usual``, ``all`` or a list of keys.

    Raises:
        SetupError: A name is unknown.
    """
    known = {comparison.key: comparison for comparison in COMPARISONS}
    if names in ("usual", "all"):
        return [comparison for comparison in COMPARISONS if comparison.is_usual or names == "all"]
    for name in names.split(","):
        if name not in known:
            raise SetupError(f"unknown output {name!r}; use usual, all, or a list of {', '.join(known)}")
    return [known[name] for name in names.split(",")]
