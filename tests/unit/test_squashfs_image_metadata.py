"""The metadata of a whole squashfs image."""

from __future__ import annotations

import errno
import struct
import zlib

import pytest

from fastpull.errors import OutputError
from fastpull.layers.merge import merge
from fastpull.layers.tree import DirectoryNode, Tree
from fastpull.sinks.squashfs.blocks.compressors import parse_compression
from fastpull.sinks.squashfs.format.inodes import FileLayout
from fastpull.sinks.squashfs.image.image_metadata import ImageMetadata, make_image_metadata
from fastpull.sinks.squashfs.tables.lookup import Fragment
from fastpull.sinks.squashfs.tables.numbering import number_tree
from tests.support.layers import Member, device, fifo, file, folder, hardlink, index, symlink
from tests.support.squashfs import SquashfsSample, superblock

NONE = 2**64 - 1


def tree_of(*members: Member) -> Tree:
    return merge([index(*members)])


def made(*members: Member, **changed: object) -> ImageMetadata:
    """Return the metadata of a tree of empty files."""
    settings = {"block_size": 4096, "compressor": parse_compression("zstd"), "data_end": 102, "time": 5, **changed}
    return make_image_metadata(tree_of(*members), lambda _: pytest.fail("layout of an empty file"), [], **settings)  # type: ignore[arg-type]


def refusal(*members: Member) -> OutputError:
    with pytest.raises(OutputError) as caught:
        made(*members)
    assert caught.value.errno == errno.EOVERFLOW
    assert caught.value.exit_code == 31
    return caught.value


# --- numbering


def test_directories_follow_their_content_and_the_root_is_last() -> None:
    numbering = number_tree(tree_of(file("a/b/c"), file("a/d"), folder("e"), file("f")))
    assert [(directory.path(), directory.number) for directory in numbering.directories] == [
        (b"a/b", 2),
        (b"a", 4),
        (b"e", 5),
        (b"", 7),
    ]
    assert (numbering.inodes, numbering.link_counts) == (7, {})
    assert numbering.directories[0].path(b"c") == b"a/b/c"


def test_paths_may_be_deep() -> None:
    deepest = b"d/" * 254 + b"f"
    assert number_tree(tree_of(file(deepest))).directories[0].path(b"f") == deepest


def test_hard_links_of_one_inode_are_counted() -> None:
    tree = tree_of(file("z"), hardlink("a/z", "z"), hardlink("b/z", "z"), file("y"))
    numbering = number_tree(tree)
    assert numbering.link_counts == {0: 3}
    assert numbering.inodes == 5


def test_the_order_of_entries_does_not_change_the_metadata() -> None:
    members = [folder("d"), file("d/b"), file("d/a"), folder("c"), file("e"), folder("", 0o700)]
    others = [members[at] for at in (5, 3, 0, 4, 2, 1)]
    assert made(*members) == made(*others)


def test_directories_have_the_number_of_their_parent_and_the_root_the_number_after_the_last() -> None:
    body = b"".join(made(folder("a/b"), folder("c"), compressor=parse_compression("gzip")).pieces)
    (header,) = struct.unpack_from("<H", body)
    inodes = zlib.decompress(body[2 : 2 + header])  # of b, a, c and the root
    found = [struct.unpack_from("<I", inodes, at + 12)[0] for at in range(0, 128, 32)]
    parents = [struct.unpack_from("<I", inodes, at + 28)[0] for at in range(0, 128, 32)]
    assert (found, parents) == ([1, 2, 3, 4], [2, 4, 4, 5])


# --- the image


def test_tables_follow_each_other_without_gaps() -> None:
    members = [file(f"d{n % 7}/{n}", b"%d" % n, uid=n, xattrs=((b"user.a", b"%d" % n),)) for n in range(3000)]
    metadata = SquashfsSample(members).metadata
    fields, body = superblock(metadata.superblock), b"".join(metadata.pieces)
    starts = ["inode_start", "directory_start", "fragment_start", "id_start", "xattr_start", "size"]
    assert [fields[name] for name in starts] == sorted(fields[name] for name in starts)

    def first(table: str, at: int = 0) -> int:
        start = fields[table] - fields["inode_start"] + at
        return int.from_bytes(body[start : start + 8], "little")

    id_lists, fragment_lists, xattr_lists = -(-fields["ids"] // 2048), -(-fields["fragments"] // 512), -(-3000 // 512)
    assert fields["id_start"] + 8 * id_lists == first("xattr_start")
    assert fields["fragment_start"] + 8 * fragment_lists == first("id_start")
    assert fields["xattr_start"] + 16 + 8 * xattr_lists == fields["size"]
    assert fields["directory_start"] < first("fragment_start") < fields["fragment_start"]


def test_an_image_without_xattrs_and_fragments_has_no_such_tables() -> None:
    metadata = made(file("a"))
    fields = superblock(metadata.superblock)
    assert (fields["xattr_start"], fields["export_start"], fields["fragments"]) == (NONE, NONE, 0)
    assert fields["directory_start"] < fields["fragment_start"] < fields["id_start"]
    assert fields["id_start"] + 8 == fields["size"]
    assert (fields["inodes"], fields["ids"], metadata.inodes) == (2, 1, 2)


@pytest.mark.parametrize("data_end", [102, 4095, 4096, 123_456_789_012])
def test_an_image_is_padded_to_4_kib(data_end: int) -> None:
    metadata = made(file("a"), data_end=data_end)
    assert (data_end + sum(map(len, metadata.pieces))) % 4096 == 0
    assert superblock(metadata.superblock)["inode_start"] == data_end


@pytest.mark.parametrize(
    ("compression", "given", "flags"),
    [("zstd:1", 0x40, 0x440), ("zstd:15", 0, 0), ("gzip", 0x40, 0x40), ("lz4", 0, 0x400), ("none", 0, 0x402)],
)
def test_superblock_flags_follow_from_compressor_and_caller(compression: str, given: int, flags: int) -> None:
    metadata = made(compressor=parse_compression(compression), flags=given)
    assert superblock(metadata.superblock)["flags"] == flags


def test_the_work_can_be_stopped_at_each_directory() -> None:
    calls: list[None] = []
    made(file("a/b/c"), file("d"), check=lambda: calls.append(None))
    assert len(calls) == 3

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(check=stop)


def test_the_layout_is_requested_once_for_each_non_empty_file() -> None:
    requested = []

    def layout(origin: int) -> FileLayout:
        requested.append(origin)
        return FileLayout(102, (1).to_bytes(4, "little"))

    tree = tree_of(file("a", b"a"), hardlink("b", "a"), file("c"), symlink("d", "a"), file("e", b"e"))
    make_image_metadata(tree, layout, [], block_size=4096, compressor=parse_compression(), data_end=104, time=0)
    assert requested == [0, 4]


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        (4096, FileLayout(0, b"")),
        (4097, FileLayout(0, bytes(4))),
        (1, FileLayout(0, bytes(4), 0)),
        (5000, FileLayout(0, bytes(8), 0)),
    ],
)
def test_a_layout_must_have_a_word_for_each_block(size: int, layout: FileLayout) -> None:
    with pytest.raises(AssertionError, match="bytes of block words"):
        make_image_metadata(
            tree_of(file("a", bytes(size))),
            lambda _: layout,
            [Fragment(0, 1)],
            block_size=4096,
            compressor=parse_compression(),
            data_end=200,
            time=0,
        )


def test_more_fragment_blocks_than_inodes_are_refused() -> None:
    with pytest.raises(AssertionError, match="fragment blocks"):
        make_image_metadata(
            tree_of(),
            lambda _: pytest.fail("no file"),
            [Fragment(0, 1)] * 2,
            block_size=4096,
            compressor=parse_compression(),
            data_end=102,
            time=0,
        )


@pytest.mark.parametrize(("time", "stored"), [(-1, 0), (5, 5), (2**33, 2**32 - 1)])
def test_the_time_of_the_image_is_clamped(time: int, stored: int) -> None:
    assert superblock(made(time=time).superblock)["time"] == stored


# --- counts


def test_clamped_times_are_counted_once_for_each_inode() -> None:
    members = [file("a", mtime=-1), hardlink("b", "a"), folder("d", mtime=2**32), file("e", mtime=2**32 - 1)]
    assert made(*members).clamped_times == 2
    assert made(*members, mtime=0).clamped_times == 0


def test_dropped_xattrs_are_counted() -> None:
    members = [
        file("a", xattrs=((b"user.a", b"1"), (b"system.posix_acl_access", b"2"), (b"trusted.overlay.opaque", b"y"))),
        symlink("s", "a", xattrs=((b"user.no", b"1"), (b"security.yes", b"2"))),
        fifo("p", xattrs=((b"user.no", b"1"),)),
        file("u", xattrs=((b"user.", b"1"),)),
    ]
    assert made(*members).dropped_xattrs == 5


# --- limits of the format


@pytest.mark.slow
def test_65535_ids_can_be_stored() -> None:
    metadata = made(*(file(f"{n}", uid=n + 1, gid=n + 1) for n in range(65_534)))
    assert superblock(metadata.superblock)["ids"] == 65_535


@pytest.mark.slow
def test_65536_ids_are_refused_with_the_path_of_the_last() -> None:
    members = [file(f"d/{n:05}", uid=n) for n in range(65_536)]
    error = refusal(*members)
    assert error.path == "d/65535"
    assert "65535 different uids and gids" in str(error)


@pytest.mark.parametrize(
    ("member", "path", "reason"),
    [
        (device("dev/x", 0x1000, 0), "dev/x", "4096:0"),
        (device("dev/x", 0, 0x100000), "dev/x", "0:1048576"),
        (file(b"d/" + b"n" * 256), "d/" + "n" * 256, "a name of more than 255 bytes"),
        (folder(b"d/" + b"n" * 256), "d/" + "n" * 256, "a name of more than 255 bytes"),
        (file(b"d\xff/" + b"n" * 256), "d\\xff/" + "n" * 256, "a name of more than 255 bytes"),
        (symlink("d/s", "x" * 65_536), "d/s", "65536 bytes"),
        (symlink("d/s", ""), "d/s", "0 bytes"),
        (file("d/f", xattrs=((b"user.a", bytes(65_537)),)), "d/f", "extended attribute"),
        (folder("d/f", xattrs=((b"user." + b"n" * 300, b"1"),)), "d/f", "extended attribute"),
        (folder("", xattrs=((b"user." + b"n" * 300, b"1"),)), "/", "extended attribute"),
    ],
)
def test_entries_that_cannot_be_stored_are_refused_with_their_path(member: Member, path: str, reason: str) -> None:
    error = refusal(member)
    assert error.path == path
    assert reason in error.reason


@pytest.mark.parametrize("size", [0, 3000, 2 << 20])
def test_an_invalid_block_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="block size"):
        made(block_size=size)


def test_directories_without_an_entry_have_the_defaults_of_the_tree() -> None:
    tree = tree_of(file("a/b"))
    assert isinstance(tree.root.children[b"a"], DirectoryNode)
    assert superblock(made(file("a/b", uid=0, gid=0)).superblock)["ids"] == 1
    assert superblock(made(file("a/b", uid=7, gid=8)).superblock)["ids"] == 3
