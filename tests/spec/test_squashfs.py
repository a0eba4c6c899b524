"""Squashfs images of layers, as real readers see them, compared with the directory sink's output of the same layers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fastpull.concurrency.threads import Aborted
from fastpull.errors import InvalidSetting, OutputError, OutputExists
from fastpull.layers.archive import archive
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sinks.base import Resources, Sink, SinkReport
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.squashfs.blocks import writer as writer_module
from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
from fastpull.sinks.squashfs.sink import Squashfs
from tests.support.layers import Member, device, fifo, file, folder, hardlink, opaque, symlink, whiteout
from tests.support.peers import mounted, mounted_by_user, unsquash
from tests.support.trees import as_fuse_shows, look

NOTHING = Digest.of(b"")
TIME = 1_600_000_000


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def text(size: int, seed: int) -> bytes:
    words = random.Random(seed).choices([b"int ", b"return ", b"static ", b"{\n", b"}\n", b"NULL"], k=size // 4)
    return b"".join(words)[:size].ljust(size, b".")


LAYERS: list[list[Member]] = [
    [
        folder("", 0o755, mtime=TIME),
        folder("usr", 0o711, uid=3, gid=4, mtime=TIME),
        file("usr/big", text(700_000, 1), mode=0o640, uid=1000, gid=1001, mtime=TIME),
        file("usr/noise", noise(300_000, 2), mtime=TIME + 1),
        file("usr/exact", noise(131_072, 3)),
        file("usr/su", b"#!/bin/sh\n", mode=0o4755),
        file("usr/empty"),
        file("usr/zeros", bytes(400_000)),
        file("usr/mixed", bytes(131_072) + b"x" + bytes(200_000)),
        *(file(f"usr/small/{n}", text(n * 37, n), mtime=TIME + n) for n in range(300)),
        file("gone/one", noise(200_000, 4)),
        file("gone/two", text(999, 5)),
        symlink("link", "usr/big", uid=7),
        hardlink("usr/big2", "usr/big"),
        file(b"\xff\xfe not utf-8", b"name"),
        file("n" * 255, b"long"),
        file(
            "cap",
            b"capable",
            xattrs=((b"security.capability", b"\1\0\0\2\0\4\0\0" + bytes(12)), (b"user.a", b"b" * 300)),
        ),
        folder("attributed", xattrs=((b"user.a", b"b" * 300),)),
        device("null", 1, 3, mode=0o666),
        fifo("pipe", mode=0o600),
    ],
    [
        whiteout("gone"),
        file("usr/small/7", b"replaced"),
        file("usr/again", text(700_000, 1)),
        file("usr/small/copy", text(100 * 37, 100)),
        hardlink("usr/big3", "usr/big2"),
        file("usr/noise", noise(1000, 6)),
    ],
    [opaque("none"), file("top", text(50_000, 7)), folder("usr", 0o755, mtime=TIME + 5)],
]


def write(
    sink: Sink,
    layers: list[list[Member]],
    *,
    order: list[int] | None = None,
    ranks: list[int] | None = None,
    again: tuple[int, ...] = (),
    chunk: int = 100_000,
    wanted: list[bytearray] | None = None,
    resources: Resources | None = None,
    created: int = 0,
) -> SinkReport:
    """Stream layers into a sink, one after the other; layers in ``again`` twice, first with other bytes."""
    try:
        sink.begin(resources or Resources())
        indexes: dict[int, LayerIndex] = {}
        for number, is_last in [(number, False) for number in again] + [
            (number, True) for number in order or range(len(layers))
        ]:
            scanner = LayerScanner("layer")
            rank = ranks[number] if ranks else number
            writer = sink.layer(number, rank, scanner.entries, wanted[number] if wanted else None)
            data = archive(layers[number] if is_last else [file("other", noise(3_000_000, 9))])
            for at in range(0, len(data), chunk):
                piece = data[at : at + chunk]
                writer.write(piece, scanner.feed(piece))
            scanner.finish()
            writer.finish()
            writer.close()
            indexes[number] = scanner.index(NOTHING, NOTHING, len(data))
        return sink.commit(merge([indexes[number] for number in range(len(layers))]), created)
    finally:
        sink.abort()


def squash(path: Path, layers: list[list[Member]], **options: Any) -> SquashfsReport:
    how = {
        name: options.pop(name)
        for name in ("order", "ranks", "again", "chunk", "wanted", "resources", "created")
        if name in options
    }
    report = write(Squashfs(path, **options), layers, **how)
    assert isinstance(report, SquashfsReport)
    assert report.size == path.stat().st_size
    return report


@pytest.mark.root
@pytest.mark.peer("unsquashfs")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd:19"},
        {"compression": "gzip"},
        {"compression": "gzip:1", "block_size": 4096},
        {"compression": "xz", "block_size": 1 << 20},
        {"compression": "lz4"},
        {"compression": "none"},
        {"fragments": False},
        {"fragments": False, "compression": "none", "block_size": 8192},
    ],
    ids=str,
)
def test_unsquashfs_unpacks_the_tree_of_the_directory_sink(tmp_path: Path, options: dict[str, Any]) -> None:
    write(Directory(tmp_path / "tree", owner="keep"), LAYERS)
    squash(tmp_path / "image", LAYERS, **options)
    expected = look(tmp_path / "tree", directory_times=True)
    assert look(unsquash(tmp_path / "image", tmp_path / "read"), directory_times=True) == expected


@pytest.mark.root
@pytest.mark.parametrize(
    "mount",
    [
        pytest.param(mounted, id="kernel", marks=pytest.mark.peer("mount")),
        pytest.param(mounted_by_user, id="squashfuse", marks=pytest.mark.peer("squashfuse")),
    ],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "none"}, {"compression": "gzip", "fragments": False}, {"compression": "xz"}],
    ids=str,
)
def test_a_mounted_image_has_the_tree_of_the_directory_sink(
    tmp_path: Path, mount: Callable[[Path, Path], AbstractContextManager[Path]], options: dict[str, Any]
) -> None:
    write(Directory(tmp_path / "tree", owner="keep"), LAYERS)
    squash(tmp_path / "image", LAYERS, **options)
    expected = look(tmp_path / "tree", directory_times=True)
    with mount(tmp_path / "image", tmp_path / "mounted") as root:
        found = look(root, directory_times=True)
    if mount is mounted_by_user:  # shows only user xattrs, and has inode numbers of its own
        found, expected = ({path: as_fuse_shows(one) for path, one in tree.items()} for tree in (found, expected))
    assert found == expected


@pytest.mark.parametrize("options", [{}, {"fragments": False}, {"compression": "none", "block_size": 4096}], ids=str)
def test_the_bytes_depend_only_on_the_image_and_the_options(tmp_path: Path, options: dict[str, Any]) -> None:
    squash(tmp_path / "image", LAYERS, **options)
    expected = (tmp_path / "image").read_bytes()
    live = merge([LayerIndex.of(entry for entry, _ in layer) for layer in LAYERS]).wanted()
    variations: list[dict[str, Any]] = [
        {"order": [2, 0, 1]},
        {"chunk": 512},
        {"chunk": 1 << 22},
        {"wanted": live},
        {"wanted": live, "order": [1, 2, 0], "chunk": 7000},
        {"again": (0, 2, 0)},
        {"resources": Resources(workers=8, layers=1)},
        {"resources": Resources(workers=1, layers=1, memory=1)},
    ]
    for number, variation in enumerate(variations):
        squash(tmp_path / f"{number}", LAYERS, **variation, **options)
        assert (tmp_path / f"{number}").read_bytes() == expected, variation


@pytest.mark.peer("unsquashfs")
@pytest.mark.parametrize("dead", [(), (0,), (1, 4), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("ranks", [[0, 1, 2], [1, 0, 2], [2, 1, 0]], ids=str)
def test_dead_blocks_of_the_largest_layer_leave_no_gap(tmp_path: Path, ranks: list[int], dead: tuple[int, ...]) -> None:
    contents = [noise(300_000 + 77_777 * number, number) for number in range(5)]
    layers = [
        [file("first", noise(200_000, 7))],
        [file(f"f{number}", content) for number, content in enumerate(contents)],
        [*(whiteout(f"f{number}") for number in dead), file("last", noise(150_000, 8))],
    ]
    report = squash(tmp_path / "image", layers, ranks=ranks, block_size=4096)
    tree = unsquash(tmp_path / "image", tmp_path / "tree")
    live = {f"f{number}": content for number, content in enumerate(contents) if number not in dead}
    assert {
        path.name: path.read_bytes() for path in tree.iterdir() if path.name.startswith("f") and path.name[1:].isdigit()
    } == live
    assert (tree / "first").read_bytes() == noise(200_000, 7)
    assert (tree / "last").read_bytes() == noise(150_000, 8)
    assert report.size <= 350_000 + sum(map(len, live.values())) + 16_384


def test_dead_content_is_not_in_the_image(tmp_path: Path) -> None:
    secret, tail = b"the secret of the lower layer" * 20_000, b"the secret of a tail"
    lower = [file("secret", secret), file("tail", tail), file("stays", b"a tail that stays")]
    squash(tmp_path / "image", [lower, [whiteout("secret"), whiteout("tail")]], compression="none")
    image = (tmp_path / "image").read_bytes()
    assert b"secret of" not in image
    assert b"a tail that stays" in image
    assert len(image) == 4096


def test_equal_content_is_stored_once_and_counted(tmp_path: Path) -> None:
    content, small = noise(500_000, 1), noise(5000, 2)
    once = squash(tmp_path / "once", [[file("a", content), file("s", small)]])
    layers = [
        [file("a", content), file("b", content), file("s", small), file("t", small)],
        [file("c", content), file("u", small)],
    ]
    report = squash(tmp_path / "image", layers)
    assert (report.duplicates, report.duplicate_bytes) == (4, 2 * 500_000 + 2 * 5000)
    assert once.duplicates == 0
    assert report.size <= once.size + 4096


@pytest.mark.peer("unsquashfs")
def test_different_files_of_equal_sizes_do_not_share_blocks(tmp_path: Path) -> None:
    contents = [noise(131_072 * 2, seed) for seed in range(4)]
    report = squash(
        tmp_path / "image", [[file(f"f{n}", content) for n, content in enumerate([*contents, contents[2]])]]
    )
    assert report.duplicates == 1
    tree = unsquash(tmp_path / "image", tmp_path / "tree")
    assert [(tree / f"f{n}").read_bytes() for n in range(5)] == [*contents, contents[2]]


@pytest.mark.peer("unsquashfs")
@pytest.mark.parametrize("collide", [False, True], ids=["", "all-fingerprints-collide"])
def test_equal_tail_ends_are_stored_once_and_never_confused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collide: bool
) -> None:
    """Equal tail-ends in the current fragment block, in a written one, in another layer, and beside dead ones."""
    if collide:
        monkeypatch.setattr(writer_module, "xxh3_128_digest", lambda _: bytes(16))
    contents = [noise(700, seed) for seed in range(60)]
    order = random.Random(5).choices(range(60), k=300)
    layers = [
        [file(f"a{at}", contents[number]) for at, number in enumerate(order)],
        [file(f"b{at}", contents[number]) for at, number in enumerate(reversed(order))],
        [whiteout(f"a{at}") for at in range(0, 300, 3)],
    ]
    report = squash(tmp_path / "image", layers, block_size=4096)
    if not collide:
        assert report.duplicates == 500 - len(set(order))
        assert report.size < 60 * 700 + 20_000
    tree = unsquash(tmp_path / "image", tmp_path / "tree")
    for at, number in enumerate(order):
        if at % 3:
            assert (tree / f"a{at}").read_bytes() == contents[number]
        assert (tree / f"b{299 - at}").read_bytes() == contents[number]


def test_blocks_of_zeros_become_holes_and_are_counted(tmp_path: Path) -> None:
    report = squash(tmp_path / "image", [[file("a", bytes(10 * 131_072)), file("b", bytes(131_072) + b"x")]])
    assert report.hole_bytes == 11 * 131_072
    assert report.size == 4096
    assert report.content_size == 11 * 131_072 + 1


def test_the_report_counts_inodes_clamped_times_and_dropped_xattrs(tmp_path: Path) -> None:
    members = [file("a", b"x", mtime=-5), file("b", b"y", mtime=1 << 40), file("c", xattrs=((b"trusted.x", b"1"),))]
    report = squash(tmp_path / "image", [members], compression="gzip:3")
    assert report.inodes == 4
    assert report.clamped_times == 2
    assert report.left_out == {"xattrs": 1}
    assert report.compression == "gzip:3"
    assert report.codecs["zlib"]


@pytest.mark.parametrize(("given", "time"), [({}, 77), ({"time": 5}, 5)])
def test_the_image_has_the_time_of_its_config_unless_one_is_set(
    tmp_path: Path, given: dict[str, int], time: int
) -> None:
    squash(tmp_path / "image", [[file("a")]], created=77, **given)
    assert int.from_bytes((tmp_path / "image").read_bytes()[8:12], "little") == time


@pytest.mark.peer("unsquashfs")
def test_mtime_sets_the_time_of_all_inodes(tmp_path: Path) -> None:
    squash(tmp_path / "image", LAYERS[2:], mtime=12345)
    tree = unsquash(tmp_path / "image", tmp_path / "tree")
    assert {found.mtime_ns for found in look(tree, directory_times=True).values()} == {12345 * 10**9}


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "brotli"},
        {"compression": "zstd:99"},
        {"compression": "lz4:3"},
        {"compression": "zstd:x"},
        {"block_size": 5000},
        {"block_size": 2048},
        {"block_size": 2 << 20},
        {"mtime": -1},
        {"time": 1 << 33},
    ],
    ids=str,
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        Squashfs(tmp_path / "image", **options)


def test_more_owners_than_the_format_can_hold_are_refused_with_the_path(tmp_path: Path) -> None:
    members = [file(f"f{n:05}", uid=n, gid=0) for n in range(65_537)]
    with pytest.raises(OutputError, match="more than 65535 different uids and gids: f6553"):
        squash(tmp_path / "image", [members])
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    (tmp_path / "image").write_text("old")
    with pytest.raises(OutputExists):
        squash(tmp_path / "image", LAYERS)
    assert (tmp_path / "image").read_text() == "old"
    squash(tmp_path / "image", LAYERS, force=True)
    assert (tmp_path / "image").read_bytes()[:4] == b"hsqs"
    assert os.listdir(tmp_path) == ["image"]


def test_a_cancelled_commit_publishes_nothing(tmp_path: Path) -> None:
    class Cancelled(Squashfs):
        def commit(self, *arguments: Any) -> SquashfsReport:
            self.cancel()
            return super().commit(*arguments)

    with pytest.raises(Aborted):
        write(Cancelled(tmp_path / "image"), LAYERS)
    assert os.listdir(tmp_path) == []


def test_layers_may_stream_concurrently(tmp_path: Path) -> None:
    squash(tmp_path / "expected", LAYERS)
    sink = Squashfs(tmp_path / "image")
    sink.begin(Resources(workers=3, layers=3))

    def stream(number: int) -> LayerIndex:
        scanner = LayerScanner("layer")
        writer = sink.layer(number, number, scanner.entries, None)
        data = archive(LAYERS[number])
        for at in range(0, len(data), 9000):
            writer.write(data[at : at + 9000], scanner.feed(data[at : at + 9000]))
        scanner.finish()
        writer.finish()
        writer.close()
        return scanner.index(NOTHING, NOTHING, len(data))

    with ThreadPoolExecutor(3) as threads:
        indexes = list(threads.map(stream, range(3)))
    sink.commit(merge(indexes))
    assert (tmp_path / "image").read_bytes() == (tmp_path / "expected").read_bytes()
