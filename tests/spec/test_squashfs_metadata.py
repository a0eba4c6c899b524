"""Squashfs metadata, as real readers parse it: the kernel, unsquashfs and squashfuse."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.merge import merge
from fastpull.sinks.squashfs.blocks.compressors import parse_compression
from fastpull.sinks.squashfs.format.inodes import FileLayout
from fastpull.sinks.squashfs.image.image_metadata import make_image_metadata
from tests.support.layers import Member, device, fifo, file, folder, hardlink, index, symlink
from tests.support.squashfs import TIME, SquashfsSample, mounted, read_back, superblock, unsquashed

pytestmark = [pytest.mark.root, pytest.mark.peer("mksquashfs", "unsquashfs", "squashfuse_ll")]

READERS = ["kernel", "unsquashfs", "squashfuse"]
BLOCK = 4096


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def block_device(path: str, major: int, minor: int) -> Member:
    return Entry(path.encode(), EntryType.BLOCK, 0o660, device=(major, minor)), b""


def all_types() -> list[Member]:
    return [
        folder("", 0o711, uid=1, gid=2, mtime=TIME),
        folder("d", 0o1777, uid=3, gid=4, mtime=TIME + 1),
        file("d/setuid", b"content", mode=0o6755, uid=1000, gid=1000, mtime=TIME + 2),
        file("d/empty", mode=0),
        symlink("d/s", "../elsewhere", uid=5, mtime=TIME + 3),
        symlink("d/long", "x" * 4095),
        device("d/null", 1, 3, mode=0o666),
        device("d/most", 0xFFF, 0xFFFFF),
        block_device("d/sda", 8, 1),
        block_device("d/other", 0x103, 0x12345),
        fifo("d/p", mode=0o600, gid=7),
        file("undescribed/a", b"a"),
    ]


def names() -> list[Member]:
    found: list[str | bytes] = [
        b"\x80",
        b"\xff\xfe",
        b"a\xff",
        "é",
        "日本",
        b"a",
        b"A",
        b"a b",
        b"a\nb",
        b"\x7f",
        "\U0001f600",
    ]
    found += [b"x" * 255, b"\xff" * 255, b"x" * 254, b"-", b"...", b"\x01"]
    return [file(b"dir\xc3\x28/" + (name.encode() if isinstance(name, str) else name), b"!") for name in found]


def sizes_of_directories() -> list[Member]:
    members = []
    for count in (0, 1, 255, 256, 257, 511, 512, 513):
        members.append(folder(f"{count}"))
        members += [file(f"{count}/{number}") for number in range(count)]
    return members


def large_directory() -> list[Member]:
    return [file(f"{number:05}" + "n" * (number % 90), b"%d" % number) for number in range(10_000)]


def long_listing() -> list[Member]:
    return [file("d/" + f"{number:04}".rjust(255, "n")) for number in range(400)]


def many_directories() -> list[Member]:
    return [file(f"{outer}/{inner:03}/f{inner}", b"%d" % outer) for outer in range(10) for inner in range(150)]


def links() -> list[Member]:
    return [
        file("a/one", b"linked" * 1000, mtime=TIME),
        hardlink("b/two", "a/one"),
        hardlink("three", "a/one"),
        hardlink("0/early", "a/one"),
        file("c/empty"),
        hardlink("c/other", "c/empty"),
        symlink("s", "a"),
        hardlink("t", "s"),
        fifo("p"),
        hardlink("q/p", "p"),
        device("n", 1, 3),
        hardlink("q/n", "n"),
    ]


def xattrs() -> list[Member]:
    long, other = noise(300), noise(2_000, 1)
    return [
        folder("", xattrs=((b"user.root", b"1"),)),
        folder("d", xattrs=((b"security.x", long), (b"user.a", long))),
        file("d/a", b"a", xattrs=((b"user.a", b"short"), (b"user.b", b"short"))),
        file("d/b", b"b", xattrs=((b"user.a", b"short"), (b"user.b", b"short"))),
        file("d/c", b"c", xattrs=((b"user.a", long), (b"user.empty", b""), (b"user.z", other))),
        file("d/d", b"d", xattrs=((b"user.b", other),)),
        file("d/8", b"", xattrs=((b"user.8", b"8" * 8), (b"user.88", b"8" * 8), (b"user.9", b"9" * 9))),
        file("d/9", b"", xattrs=((b"user.9", b"9" * 9), (b"user.name." + b"n" * 245, b"v"))),
        file(
            "d/cap", b"", xattrs=((b"security.capability", bytes.fromhex("0100000200040000000000000000000000000000")),)
        ),
        file("d/dropped", xattrs=((b"trusted.overlay.opaque", b"y"), (b"system.posix_acl_access", b"x"))),
        symlink("s", "d", xattrs=((b"security.x", long), (b"user.x", b"cannot be set"))),
        fifo("p", xattrs=((b"security.x", b"p"),)),
        device("n", 1, 3, xattrs=((b"security.x", b"n"),)),
        block_device("b", 7, 7),
    ]


def many_xattrs() -> list[Member]:
    return [file(f"{n:04}", xattrs=((b"user.n", b"%d" % n), (b"user.s", noise(20, n % 50)))) for n in range(1500)]


def sizes_of_files() -> list[Member]:
    sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 5 * BLOCK + 17]
    return [file(f"{kind}{size}", fill(size)) for size in sizes for kind, fill in (("n", noise), ("t", text))]


def text(size: int) -> bytes:
    return (b"All work and no play makes Jack a dull boy. " * (size // 40 + 1))[:size]


def holes() -> list[Member]:
    zero = bytes(BLOCK)
    contents = [zero, zero + b"x", zero * 3, noise(BLOCK) + zero + noise(BLOCK), zero + noise(BLOCK) + zero + b"\0\0"]
    return [file(f"hole{number}", content) for number, content in enumerate(contents)]


def ids() -> list[Member]:
    members = [file(f"{number:04}", uid=number * 7, gid=2**32 - 2 - number) for number in range(5000)]
    return [*members, file("nobody", uid=65534, gid=65534)]


def deep() -> list[Member]:
    return [file("d/" * depth + "f", b"%d" % depth) for depth in range(1, 200)]


def times() -> list[Member]:
    found = [-(2**40), -1, 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60]
    return [file(f"{time}", mtime=time) for time in found] + [folder("d", mtime=-5)]


CASES: dict[str, Callable[[], list[Member]]] = {
    made.__name__: made
    for made in (
        all_types, names, sizes_of_directories, large_directory, long_listing, many_directories, links, xattrs,
        many_xattrs, sizes_of_files, holes, ids, deep, times,
    )
}  # fmt: skip
CASES["nothing"] = list


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", CASES)
def test_readers_find_the_tree(case: str, reader: str, tmp_path: Path) -> None:
    image = SquashfsSample(CASES[case]())
    assert read_back(image.write(tmp_path / "image"), tmp_path / "root", reader) == image.expected()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("tails", [False, True], ids=["blocks", "fragments"])
@pytest.mark.parametrize("compression", ["zstd:1", "zstd:15", "zstd:22", "gzip", "gzip:1", "xz", "lz4", "none"])
def test_readers_support_every_compression(compression: str, tails: bool, reader: str, tmp_path: Path) -> None:
    members = [*all_types(), *links(), *sizes_of_files(), *(file(f"m/{n}", text(n)) for n in range(500))]
    for size in (BLOCK, 1 << 17, 1 << 20):
        members.append(file("large", text(3 * size + 5)))
        image = SquashfsSample(members, compression=compression, block_size=size, tails=tails)
        written = image.write(tmp_path / f"image{size}")
        assert read_back(written, tmp_path / f"root{size}", reader) == image.expected()


@pytest.mark.parametrize("reader", READERS)
def test_several_layers_make_one_image(reader: str, tmp_path: Path) -> None:
    lower = [folder("d", 0o700), file("d/a", b"lower"), file("d/b", b"b", uid=1, xattrs=((b"user.x", b"1"),))]
    image = SquashfsSample(
        lower, [file("d/a", b"upper"), hardlink("c", "d/b")], [folder("d", 0o755, xattrs=((b"user.d", b"2"),))]
    )
    assert read_back(image.write(tmp_path / "image"), tmp_path / "root", reader) == image.expected()


@pytest.mark.parametrize("reader", READERS)
def test_data_may_start_beyond_4_gib(reader: str, tmp_path: Path) -> None:
    image = SquashfsSample([*sizes_of_files(), *holes(), *links()], gap=5 << 30)
    assert read_back(image.write(tmp_path / "image"), tmp_path / "root", reader) == image.expected()


@pytest.mark.parametrize("reader", ["kernel", "squashfuse"])
def test_a_file_may_be_larger_than_4_gib(reader: str, tmp_path: Path) -> None:
    size, block_size = (5 << 30) + 3, 1 << 20
    entry, _ = file("large")
    tree = merge([index((replace(entry, size=size), b""))])
    words = bytes(4 * (size // block_size)) + (3 | 1 << 24).to_bytes(4, "little")
    compressor = parse_compression()
    start = 96 + len(compressor.options())
    made = make_image_metadata(
        tree,
        lambda _: FileLayout(start, words, sparse=size - 3),
        [],
        block_size=block_size,
        compressor=compressor,
        data_end=start + 3,
        time=TIME,
    )
    written = tmp_path / "image"
    written.write_bytes(b"".join((made.superblock, compressor.options(), b"end", *made.pieces)))
    with mounted(written, tmp_path / "root", reader) as root, (root / "large").open("rb") as opened:
        assert os.fstat(opened.fileno()).st_size == size
        opened.seek(-5, os.SEEK_END)
        assert opened.read() == b"\0\0end"


def test_the_kernel_shows_the_link_counts(tmp_path: Path) -> None:
    image = SquashfsSample([*links(), *all_types()])
    with mounted(image.write(tmp_path / "image"), tmp_path / "root", "kernel") as root:
        for path, found in image.expected().items():
            parents = [os.path.dirname(other) or b"." for other, one in image.expected().items() if one.kind == "d"]
            nlink = 2 + parents[1:].count(path) if found.kind == "d" else len(found.links)
            assert os.lstat(os.path.join(os.fsencode(root), path)).st_nlink == nlink, path


def test_xattrs_may_be_longer_than_a_metadata_block(tmp_path: Path) -> None:
    values = [
        noise(size, size) for size in (8191, 8192, 8193, 65_536)
    ]  # the test's own filesystem may not support these sizes
    image = SquashfsSample(
        [file(f"{n}", xattrs=((b"user.a", values[n % 4]), (b"user.b", values[n % 3]))) for n in range(12)]
    )
    assert read_back(image.write(tmp_path / "image"), tmp_path / "root", "kernel") == image.expected()


def test_every_name_of_a_large_directory_can_be_looked_up(tmp_path: Path) -> None:
    image = SquashfsSample(large_directory())
    with mounted(image.write(tmp_path / "image"), tmp_path / "root", "kernel") as root:
        for name in image.tree.root.children:
            assert (root / os.fsdecode(name)).read_bytes() == b"%d" % int(name[:5])
        assert not (root / "00000a").exists()
        assert not (root / "zzz").exists()


@pytest.mark.parametrize("reader", ["kernel", "unsquashfs"])
def test_a_directory_may_have_100_000_entries(reader: str, tmp_path: Path) -> None:
    image = SquashfsSample([file(f"{number:06}-{'n' * (number % 50)}") for number in range(100_000)])
    assert read_back(image.write(tmp_path / "image"), tmp_path / "root", reader) == image.expected()


def test_mtime_replaces_the_time_of_all_inodes(tmp_path: Path) -> None:
    image = SquashfsSample(all_types(), mtime=12345)
    found = unsquashed(image.write(tmp_path / "image"), tmp_path / "root")
    assert {one.mtime_ns for one in found.values()} == {12345 * 10**9}
    assert found == image.expected()


@pytest.mark.parametrize("compression", ["zstd:1", "zstd:15", "gzip", "xz", "lz4", "none"])
def test_mksquashfs_can_append(compression: str, tmp_path: Path) -> None:
    # each value once: mksquashfs 4.5.1 crashes when it appends to an image with out-of-line values, even its own
    attributes = [file("x", xattrs=((b"user.a", b"1" * 100),)), file("y", xattrs=((b"security.b", b"2"),))]
    image = SquashfsSample([*all_types(), *links(), *attributes, *sizes_of_files()], compression=compression)
    written = image.write(tmp_path / "image")
    before = {path: found for path, found in image.expected().items() if path != b"."}
    added = tmp_path / "added"
    added.mkdir()
    (added / "new").write_bytes(b"appended")
    subprocess.run(
        ["mksquashfs", added, written, "-no-progress", "-keep-as-directory"], check=True, stdout=subprocess.DEVNULL
    )
    after = unsquashed(written, tmp_path / "root")
    assert {b".", b"added", b"added/new"} == after.keys() - before.keys()
    assert {path: after[path] for path in before} == before


def test_an_image_has_the_size_in_its_superblock_plus_padding(tmp_path: Path) -> None:
    written = SquashfsSample(sizes_of_files()).write(tmp_path / "image").read_bytes()
    size = superblock(written)["size"]
    assert 0 <= len(written) - size < 4096
    assert len(written) % 4096 == 0
    assert not any(written[size:])


# --- property tests

NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"c"]),
    st.binary(min_size=1, max_size=255).filter(
        lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..") and b".wh." not in name
    ),
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
IDS = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 2))
CONTENTS = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.lists(st.sampled_from([bytes(BLOCK), b"x" * BLOCK, noise(BLOCK), b"tail"]), max_size=4).map(b"".join),
)
XATTRS = st.dictionaries(
    st.sampled_from([b"user.a", b"user.bb", b"security.x", b"trusted.t"]),
    st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([b"v" * 9, b"w" * 1000])),
    max_size=3,
).map(lambda found: tuple(sorted(found.items())))


@st.composite
def members(draw: st.DrawFn) -> Member:
    kind = draw(st.sampled_from([*[EntryType.FILE] * 4, *(kind for kind in EntryType if kind != EntryType.HARDLINK)]))
    content = draw(CONTENTS) if kind is EntryType.FILE else b""
    is_device = kind in (EntryType.CHAR, EntryType.BLOCK)
    return (
        Entry(
            draw(PATHS),
            kind,
            draw(st.integers(0, 0o7777)),
            draw(IDS),
            draw(IDS),
            draw(st.integers(-(2**33), 2**33)),
            len(content),
            draw(st.binary(min_size=1, max_size=200).filter(lambda target: b"\0" not in target))
            if kind is EntryType.SYMLINK
            else b"",
            draw(st.tuples(st.integers(0, 0xFFF), st.integers(0, 0xFFFFF))) if is_device else (0, 0),
            draw(XATTRS),
        ),
        content,
    )


@st.composite
def stacks(draw: st.DrawFn) -> list[list[Member]]:
    """One layer per member, so that no rule of layers refuses them; some members get hard links."""
    found = [[member] for member in draw(st.lists(members(), max_size=12))]
    others = [member[0] for [member] in found if member[0].type is not EntryType.DIRECTORY]
    if found and others and found[-1][0][0] in others:
        last = found[-1]
        last += [hardlink(b"link%d" % number, last[0][0].path) for number in range(draw(st.integers(0, 3)))]
    return found


@settings(deadline=None, max_examples=500)
@given(stacks(), st.booleans(), st.sampled_from(["zstd:1", "gzip:1", "none"]))
def test_readers_find_any_tree(layers: list[list[Member]], tails: bool, compression: str) -> None:
    image = SquashfsSample(*layers, tails=tails, compression=compression)
    with tempfile.TemporaryDirectory() as work:
        assert unsquashed(image.write(Path(work, "image")), Path(work, "root")) == image.expected()
