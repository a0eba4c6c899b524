"""Small squashfs images written without the sink, and the trees that readers should find in them."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fastpull.layers.entry import EntryType
from fastpull.layers.merge import merge
from fastpull.layers.tree import DirectoryNode, Origin, Tree, entry_of, layer_of
from fastpull.layers.xattrs import is_kept
from fastpull.sinks.squashfs.blocks.compressors import parse_compression
from fastpull.sinks.squashfs.format.inodes import FileLayout
from fastpull.sinks.squashfs.format.superblock import RAW
from fastpull.sinks.squashfs.image.image_metadata import ImageMetadata, make_image_metadata
from fastpull.sinks.squashfs.tables.lookup import Fragment
from tests.support.layers import Member, index
from tests.support.trees import FoundEntry, look

TIME = 1_700_000_000
_KINDS = {
    EntryType.FILE: "-",
    EntryType.SYMLINK: "l",
    EntryType.CHAR: "c",
    EntryType.BLOCK: "b",
    EntryType.FIFO: "p",
    EntryType.DIRECTORY: "d",
}


class SquashfsSample:
    """A squashfs image of layers, with all data in memory.

    Args:
        layers: the members of each layer.
        compression: the compression, as in settings.
        block_size: the size of data blocks, in bytes.
        tails: whether tail-ends are stored in fragment blocks.
        gap: the size of a gap before the data, in bytes.
        mtime: the time of all inodes; None for their own.
    """

    def __init__(
        self,
        *layers: Sequence[Member],
        compression: str = "zstd:1",
        block_size: int = 4096,
        tails: bool = True,
        gap: int = 0,
        mtime: int | None = None,
    ) -> None:
        self.tree = merge([index(*layer) for layer in layers])
        self.contents = [[content for _, content in layer] for layer in layers]
        self.mtime = mtime
        self._compressor = parse_compression(compression)
        self._block_size = block_size
        self._start = 96 + len(self._compressor.options()) + gap
        self._data = bytearray()
        self._fragments: list[Fragment] = []
        self._tails = bytearray()
        layouts = {origin: self._layout(origin, tails) for origin in files(self.tree)}
        self._end_fragment()
        self.metadata: ImageMetadata = make_image_metadata(
            self.tree,
            layouts.__getitem__,
            self._fragments,
            block_size=block_size,
            compressor=self._compressor,
            data_end=self._start + len(self._data),
            time=TIME,
            mtime=mtime,
        )

    def write(self, path: Path) -> Path:
        with path.open("wb") as file:
            file.seek(self._start)
            file.write(self._data)
            file.writelines(self.metadata.pieces)
            file.seek(0)
            file.write(self.metadata.superblock)
            file.write(self._compressor.options())
        return path

    def content(self, origin: Origin) -> bytes:
        return self.contents[layer_of(origin)][entry_of(origin)]

    def _layout(self, origin: Origin, tails: bool) -> FileLayout:
        content, size = self.content(origin), self._block_size
        words, sparse, start = [], 0, self._start + len(self._data)
        in_blocks = len(content) - len(content) % size if tails else len(content)
        for at in range(0, in_blocks, size):
            block = content[at : min(at + size, in_blocks)]
            if block.strip(b"\0"):
                words.append(self._put(block, self._compressor.compress))
            else:
                words.append(0)
                sparse += len(block)
        packed = struct.pack(f"<{len(words)}I", *words)
        if in_blocks == len(content):
            return FileLayout(start, packed, sparse=sparse)
        tail = content[in_blocks:]
        if len(self._tails) + len(tail) > size:
            self._end_fragment()
        offset = len(self._tails)
        self._tails += tail
        return FileLayout(start, packed, len(self._fragments), offset, sparse)

    def _end_fragment(self) -> None:
        if self._tails:
            start = self._start + len(self._data)
            word = self._put(bytes(self._tails), self._compressor.compress_metadata)
            self._fragments.append(Fragment(start, word))
            self._tails.clear()

    def _put(self, block: bytes, compress: Callable[[bytes], bytes]) -> int:
        packed = compress(block)
        is_raw = len(packed) >= len(block)
        self._data += block if is_raw else packed
        return len(block) | RAW if is_raw else len(packed)

    def expected(self) -> dict[bytes, FoundEntry]:
        """Return the tree that a reader with root privileges should find."""
        names: dict[Origin, list[bytes]] = {}
        for path, node in self.tree.walk():
            if not isinstance(node, DirectoryNode):
                names.setdefault(node, []).append(path)
        return {path or b".": self._found(node, names) for path, node in self.tree.walk()}

    def _found(self, node: DirectoryNode | Origin, names: dict[Origin, list[bytes]]) -> FoundEntry:
        entry = self.tree.entry(node)
        mtime = entry.mtime if self.mtime is None else self.mtime
        content = ""
        if entry.type is EntryType.SYMLINK:
            content = repr(entry.linkname)
        elif entry.type is EntryType.FILE:
            assert not isinstance(node, DirectoryNode)
            content = hashlib.sha256(self.content(node)).hexdigest()
        return FoundEntry(
            kind=_KINDS[entry.type],
            mode=0o777 if entry.type is EntryType.SYMLINK else entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            mtime_ns=min(max(mtime, 0), 2**32 - 1) * 10**9,
            device=os.makedev(*entry.device),
            content=content,
            links=() if isinstance(node, DirectoryNode) else tuple(sorted(names[node])),
            xattrs=tuple(
                (os.fsdecode(name), value) for name, value in entry.xattrs if is_kept(name, value, entry.type)
            ),
        )


def files(tree: Tree) -> list[Origin]:
    """Return the origins of all files, each once, in the order of the walk."""
    found = [node for _, node in tree.walk() if not isinstance(node, DirectoryNode)]
    return [origin for origin in dict.fromkeys(found) if tree.type(origin) is EntryType.FILE]


def superblock(content: bytes) -> dict[str, int]:
    """Return the fields of a superblock, by the names of the format's description."""
    tables = ["id", "xattr", "inode", "directory", "fragment", "export"]
    names = ["magic", "inodes", "time", "block_size", "fragments", "compressor", "block_log", "flags", "ids"]
    names += ["major", "minor", "root", "size", *(f"{table}_start" for table in tables)]
    return dict(zip(names, struct.unpack_from("<5I6H8Q", content), strict=True))


def unsquashed(image: Path, folder: Path) -> dict[bytes, FoundEntry]:
    """Return the tree that unsquashfs unpacks; it must not print an error or warning."""
    done = subprocess.run(
        ["unsquashfs", "-no-progress", "-strict-errors", "-d", folder, image], check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return look(folder, directory_times=True)


@contextmanager
def mounted(image: Path, folder: Path, reader: str) -> Iterator[Path]:
    """Mount an image with ``kernel`` or ``squashfuse``; skip the test on a machine that cannot mount."""
    needed = "/dev/fuse" if reader == "squashfuse" else "/dev/loop-control"
    if not os.path.exists(needed):
        pytest.skip(f"needs {needed}")
    folder.mkdir()
    # squashfuse_ll, because squashfuse gives every hard link an inode of its own
    command = ["squashfuse_ll"] if reader == "squashfuse" else ["mount", "-t", "squashfs", "-o", "loop,ro"]
    subprocess.run([*command, image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def read_back(image: Path, folder: Path, reader: str) -> dict[bytes, FoundEntry]:
    """Return the tree that a reader finds in an image."""
    if reader == "unsquashfs":
        return unsquashed(image, folder)
    with mounted(image, folder, reader) as root:
        found = look(root, directory_times=True)
    if reader == "squashfuse":  # it swaps two xattr namespaces, also in images of mksquashfs
        return {path: replace(one, xattrs=tuple(sorted(map(_renamed, one.xattrs)))) for path, one in found.items()}
    return found


def _renamed(xattr: tuple[str, bytes]) -> tuple[str, bytes]:
    space, _, name = xattr[0].partition(".")
    return f"{ {'trusted': 'security', 'security': 'trusted'}.get(space, space) }.{name}", xattr[1]
