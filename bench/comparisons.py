"""The comparisons: jobs, those who do them, and what the machine itself needs for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench import peers
from bench.limits import LimitStage
from bench.sources import Where
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
    """Peers that do the same job.

    Attributes:
        name: for people.
        peers: the others are compared with the first one.
        stages: of the job, for its limit; none where the line is the limit, not the machine.
        source: where the image comes from.
        is_usual: whether it takes place unless another is asked for.
        is_download: whether layers stay as they are.
    """

    name: str
    peers: tuple[Peer, ...]
    stages: tuple[LimitStage, ...] = ()
    source: Where = Where.HTTP
    is_usual: bool = False
    is_download: bool = False

    @property
    def key(self) -> str:
        """The name on the command line."""
        return self.name.replace(",", "").replace(" ", "-")

    def among(self, *, is_zstd: bool) -> Comparison:
        """The comparison of those who can take part: whose programs are here, if they are optional, and read the image.

        Args:
            is_zstd: whether a layer of the image is compressed with zstd.
        """

        def can(peer: Peer) -> bool:
            return (peer.reads_zstd or not is_zstd) and not (peer.is_optional and missing(peer.programs))

        return replace(self, peers=tuple(filter(can, self.peers)))


def _download(name: str, source: Where, *more: Peer, options: tuple[str, ...] = ()) -> Comparison:
    stages = _FETCH if source is Where.HTTP else ()
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
    Comparison("writer", (peers.writer(), peers.tar2sqfs()), source=Where.LAYOUT, is_usual=True),
    Comparison(
        "directory, cached",
        (peers.fastpull("rootfs", is_cached=True), peers.umoci(is_cached=True)),
        (LimitStage.READ, *_DIRECTORY),
    ),
    Comparison(
        "directory, layout",
        (peers.fastpull("rootfs"), peers.umoci_of_layout()),
        (*_LOAD, *_DIRECTORY),
        Where.LAYOUT,
    ),
    Comparison(
        "squashfs, layout",
        (peers.fastpull("image.sqsh"), peers.mksquashfs_of_layout(*_ZSTD)),
        (*_LOAD, *_SQUASHFS),
        Where.LAYOUT,
    ),
    Comparison("directory, tls", (peers.fastpull("rootfs", "--insecure"), peers.umoci()), (), Where.TLS),
    _download("download", Where.HTTP, peers.crane(), peers.oras()),
    _download("download, tls", Where.TLS, options=("--insecure",)),
    _download("download, 20 ms", Where.NEAR),
    _download("download, 80 ms", Where.FAR),
)


def choose(names: str) -> list[Comparison]:
    """The comparisons that a command line names: ``usual``, ``all``, or a list of keys.

    Raises:
        SetupError: it names something else.
    """
    known = {comparison.key: comparison for comparison in COMPARISONS}
    if names in ("usual", "all"):
        return [comparison for comparison in COMPARISONS if comparison.is_usual or names == "all"]
    for name in names.split(","):
        if name not in known:
            raise SetupError(f"no output {name!r}: usual, all, or a list of {', '.join(known)}")
    return [known[name] for name in names.split(",")]
