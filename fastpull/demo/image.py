"""A generated image with the difficult features of layers, and its expected tree."""

from __future__ import annotations

import gzip
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastpull.layers.archive import archive
from fastpull.layers.entry import Entry, EntryType

Members = list[tuple[Entry, bytes]]
_TIME = 1_700_000_000
_WORDS = b"the quick brown fox jumps over the lazy dog while layers stream into files ".split()


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected entry at a path.

    Attributes:
        type: the type of the entry.
        mode: the permission bits, if owners are kept.
        content: the content of a file, or the target of a symbolic link.
        links: the number of a file's names.
        xattrs: the extended attributes of the ``user.`` namespace.
    """

    type: EntryType
    mode: int
    content: bytes = b""
    links: int = 1
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True)
class DemoImage:
    """An image: its stored layers and its expected tree.

    Attributes:
        layers: compressed layers, from the base to the top.
        diff_ids: digests of the uncompressed layers.
        unpacked: the size of the uncompressed layers in bytes.
        expected: the tree by path, without directories of mode 0755.
        features: the names of its features, for the summary.
    """

    layers: list[bytes] = field(default_factory=list)
    diff_ids: list[str] = field(default_factory=list)
    unpacked: int = 0
    expected: dict[bytes, Expected] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)


def make_image(mebibytes: int = 64) -> DemoImage:
    """Return the generated image, always the same.

    Args:
        mebibytes: the approximate size of all files; most of it is in the base layer.
    """
    image = DemoImage()
    for members in (_base(image, mebibytes), _changes(image), _links(image)):
        tar = archive(members)
        image.layers.append(gzip.compress(tar, 1, mtime=0))
        image.diff_ids.append("sha256:" + hashlib.sha256(tar).hexdigest())
        image.unpacked += len(tar)
    image.features = [
        "whiteouts",
        "an opaque directory",
        "hard links across layers",
        "symbolic links",
        "setuid",
        "long and non-UTF-8 names",
        "extended attributes",
        "a fifo and a device",
        "a directory that becomes a file",
    ]
    return image


def _file(
    path: bytes, content: bytes, mode: int = 0o644, xattrs: tuple[tuple[bytes, bytes], ...] = ()
) -> tuple[Entry, bytes]:
    return Entry(path, EntryType.FILE, mode, mtime=_TIME, size=len(content), xattrs=xattrs), content


def _directory(path: bytes, mode: int = 0o755) -> tuple[Entry, bytes]:
    return Entry(path, EntryType.DIRECTORY, mode, mtime=_TIME), b""


def _other(
    path: bytes, type_: EntryType, linkname: bytes = b"", device: tuple[int, int] = (0, 0)
) -> tuple[Entry, bytes]:
    mode = 0o777 if type_ is EntryType.SYMLINK else 0o644
    return Entry(path, type_, mode, mtime=_TIME, linkname=linkname, device=device), b""


def _whiteout(path: bytes) -> tuple[Entry, bytes]:
    folder, _, name = path.rpartition(b"/")
    return _file(folder + b"/.wh." + name if folder else b".wh." + name, b"")


def _texts(count: int, size: int, seed: int) -> Iterator[bytes]:
    """Yield texts that compress like programs, to about a third."""
    choose = random.Random(seed)  # noqa: S311  # test data
    for _ in range(count):
        lines = b" ".join(choose.choices(_WORDS, k=max(1, size // 60))) + choose.randbytes(max(1, size // 4))
        yield (lines * 4)[:size]


def _base(image: DemoImage, mebibytes: int) -> Members:
    members: Members = [_directory(b"", 0o755)]
    for folder in (b"bin", b"etc", b"usr", b"usr/lib", b"usr/share", b"var", b"var/cache", b"var/cache/apt"):
        members.append(_directory(folder))
    for number, text in enumerate(_texts(mebibytes // 4, 3 << 20, seed=1)):
        members.append(_expect(image, b"usr/lib/lib%03d.so" % number, text, 0o755))
    for number, text in enumerate(_texts(mebibytes * 16, 16 << 10, seed=2)):
        members.append(_expect(image, b"usr/share/doc/package-%04d/README" % number, text))
    for number in range(50):
        members.append(_file(b"var/cache/apt/archive-%d" % number, b"stale"))  # hidden by an opaque directory
    members.append(_expect(image, b"bin/su", b"#!setuid\n" * 100, 0o4755))
    long_name = b"usr/share/" + b"/".join(b"a-rather-long-component-%02d" % n for n in range(12)) + b"/" + b"n" * 200
    members.append(_expect(image, long_name, b"long"))
    members.append(_expect(image, b"usr/share/caf\xe9-\xff", b"not UTF-8"))
    members.append(_expect(image, b"etc/tagged", b"tagged", xattrs=((b"user.comment", b"from the image"),)))
    members.append(_file(b"etc/removed", b"removed by a whiteout"))
    members.append(_file(b"etc/config.d/old", b"removed with its directory"))
    members.append(_file(b"usr/share/becomes-a-file/inner", b"gone"))
    members.append(_expect(image, b"bin/tool", b"one inode\n" * 500, 0o755, links=3))
    members.append(_other(b"bin/tool-alias", EntryType.HARDLINK, b"bin/tool"))
    image.expected[b"bin/tool-alias"] = image.expected[b"bin/tool"]
    members.append(_other(b"lib", EntryType.SYMLINK, b"usr/lib"))
    image.expected[b"lib"] = Expected(EntryType.SYMLINK, 0o777, b"usr/lib")
    members.append(_other(b"var/pipe", EntryType.FIFO))
    image.expected[b"var/pipe"] = Expected(EntryType.FIFO, 0o644)
    members.append(_other(b"etc/null", EntryType.CHAR, device=(1, 3)))
    image.expected[b"etc/null"] = Expected(EntryType.CHAR, 0o644)
    members.append(_file(b"bin/linked-then-removed", b"lives on under another name", 0o755))
    return members


def _changes(image: DemoImage) -> Members:
    members = [
        _whiteout(b"etc/removed"),
        _whiteout(b"etc/config.d"),
        _file(b"var/cache/apt/.wh..wh..opq", b""),
        _expect(image, b"var/cache/apt/fresh", b"in an opaque directory"),
        _expect(image, b"usr/share/becomes-a-file", b"now a file"),
        _expect(image, b"etc/motd", b"replaced by the layer above", 0o644),
        # below a symbolic link of the base: lands in usr/lib
        _file(b"lib/through-a-link", b"followed inside the root"),
    ]
    image.expected[b"usr/lib/through-a-link"] = Expected(EntryType.FILE, 0o644, b"followed inside the root")
    return members


def _links(image: DemoImage) -> Members:
    members = [
        _other(b"usr/bin/tool", EntryType.HARDLINK, b"bin/tool"),
        _other(b"bin/kept", EntryType.HARDLINK, b"bin/linked-then-removed"),
        _expect(image, b"etc/motd", b"hello from fastpull\n"),
        _directory(b"var/tmp", 0o1777),
    ]
    image.expected[b"usr/bin/tool"] = image.expected[b"bin/tool"]
    kept = Expected(EntryType.FILE, 0o755, b"lives on under another name", links=2)
    image.expected[b"bin/kept"] = image.expected[b"bin/linked-then-removed"] = kept
    image.expected[b"var/tmp"] = Expected(EntryType.DIRECTORY, 0o1777)
    return members


def _expect(
    image: DemoImage,
    path: bytes,
    content: bytes,
    mode: int = 0o644,
    *,
    links: int = 1,
    xattrs: tuple[tuple[bytes, bytes], ...] = (),
) -> tuple[Entry, bytes]:
    """Return a file, and expect it in the tree."""
    image.expected[path] = Expected(EntryType.FILE, mode, content, links, xattrs)
    return _file(path, content, mode, xattrs)
