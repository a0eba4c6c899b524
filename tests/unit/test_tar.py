"""The tar sink without a registry; fastpull, GNU tar and Python's tarfile read its archives."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastpull.concurrency.threads import Aborted
from fastpull.errors import InvalidSetting, OutputError, OutputExists
from fastpull.layers.archive import BLOCK, archive
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.merge import merge
from fastpull.layers.tree import DirectoryNode as TreeDirectory
from fastpull.layers.tree import Tree
from fastpull.layers.xattrs import is_kept
from fastpull.native import layer_scanner as scan_module
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sinks.base import Resources, Sink, SinkReport
from fastpull.sinks.choose import sink_for
from fastpull.sinks.directory import sink as directory_module
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.tar import sink as tar_module
from fastpull.sinks.tar.sink import Tar
from tests.support.engines import ENGINES, Engine
from tests.support.headers import END
from tests.support.layers import Member, device, fifo, file, folder, hardlink, symlink, whiteout
from tests.support.trees import look

SOME_TIME = 1_600_000_000
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
LONG = "/".join(["directory"] * 30)
IMAGE: list[list[Member]] = [
    [
        folder("", 0o711, mtime=7),
        folder("d", 0o2775, uid=1, gid=2, mtime=SOME_TIME, xattrs=((b"user.d", b"1"),)),
        file("d/a", b"hello" * 1000, mode=0o6755, uid=1000, gid=1001, mtime=SOME_TIME),
        file("d/large", b"large" * 50_000, mtime=-5),
        file("empty", mode=0o400, mtime=8**11),
        file("undescribed/x/y", b"y"),
        file("gone", b"gone"),
        symlink("s", "d/a", uid=7, gid=8, mtime=9),
        hardlink("t", "s"),
        file(LONG + "/file", b"deep"),
        symlink("far", LONG),
        file(b"caf\xe9/\xff", b"bytes"),
        file("big", b"x", uid=4_000_000_000, gid=4_294_967_294),
    ],
    [
        hardlink("d/b", "d/a"),
        hardlink("0", "d/b"),
        hardlink("far2", LONG + "/file"),
        whiteout("gone"),
        device("null", 1, 3, mode=0o666, uid=3, gid=4, mtime=11),
        fifo("pipe", mode=0o620, uid=5, gid=6, mtime=12),
        file("ping", b"p", xattrs=((b"security.capability", CAPABILITY), (b"user.x", b"\0=\n"))),
        file("d/large", b"LARGE" * 40_000),
    ],
]


@pytest.fixture(params=ENGINES, ids=repr, autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    found: Engine = request.param
    use(found, monkeypatch)
    return found


def use(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "Scanner", engine.scanner)
    monkeypatch.setattr(tar_module, "PayloadWriter", engine.payload)
    monkeypatch.setattr(directory_module, "FileWriter", engine.writer)


def stream(sink: Sink, number: int, data: bytes, chunk: int = 100_000, wanted: bytearray | None = None) -> LayerScanner:
    scanner = LayerScanner("layer")
    writer = sink.layer(number, number, scanner.entries, wanted)
    for at in range(0, len(data), chunk):
        piece = data[at : at + chunk]
        writer.write(piece, scanner.feed(piece))
    scanner.finish()
    writer.close()
    return scanner


def write(
    sink: Sink,
    *layers: list[Member] | bytes,
    order: list[int] | None = None,
    chunk: int = 100_000,
    again: tuple[int, ...] = (),
    wanted: list[bytearray] | None = None,
) -> SinkReport:
    """Write layers to a sink in ``order``, and layers in ``again`` twice."""
    try:
        sink.begin(Resources())
        indexes = {}
        for number in [*(order or range(len(layers))), *again]:
            layer = layers[number]
            data = layer if isinstance(layer, bytes) else archive(layer)
            scanner = stream(sink, number, data, chunk, wanted[number] if wanted else None)
            indexes[number] = scanner.index(Digest.of(b""), Digest.of(b""), len(data))
        return sink.commit(merge([indexes[number] for number in range(len(layers))]))
    finally:
        sink.abort()


def made(folder: Path, *layers: list[Member] | bytes, mtime: int | None = None, **how: Any) -> bytes:
    """Return the archive of an image."""
    write(Tar(folder / "image.tar", force=True, mtime=mtime), *layers, **how)
    return (folder / "image.tar").read_bytes()


def tree_of(*layers: list[Member] | bytes) -> Tree:
    indexes = []
    for layer in layers:
        scanner = LayerScanner("layer")
        scanner.feed(layer if isinstance(layer, bytes) else archive(layer))
        scanner.finish()
        indexes.append(scanner.index(Digest.of(b""), Digest.of(b""), 0))
    return merge(indexes)


def described(tree: Tree) -> dict[bytes, tuple[Any, ...]]:
    """Return all attributes of a tree's paths, with the first name of each inode."""
    found: dict[bytes, tuple[Any, ...]] = {}
    first: dict[int, bytes] = {}
    for path, node in tree.walk():
        name = path if isinstance(node, TreeDirectory) else first.setdefault(node, path)
        e = tree.entry(node)
        xattrs = tuple(xattr for xattr in e.xattrs if is_kept(*xattr, e.type))
        found[path] = (name, e.type, e.mode, e.uid, e.gid, e.mtime, e.size, e.linkname, e.device, xattrs)
    return found


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return {
            member.name: opened.extractfile(member).read()  # type: ignore[union-attr]
            for member in opened.getmembers()
            if member.isreg() or (member.islnk() and opened._find_link_target(member).isreg())  # type: ignore[attr-defined]
        }


# --- the archive


def test_archive_scans_to_same_tree(tmp_path: Path) -> None:
    assert described(tree_of(made(tmp_path, *IMAGE))) == described(tree_of(*IMAGE))


def test_archive_of_archive_is_identical(tmp_path: Path) -> None:
    data = made(tmp_path, *IMAGE)
    assert made(tmp_path, data) == data


@pytest.mark.parametrize("chunk", [512, 700])
@pytest.mark.parametrize("how", [{}, {"order": [1, 0]}, {"again": (0, 1, 0)}, {"wanted": True}], ids=str)
def test_the_same_image_gives_the_same_bytes(tmp_path: Path, chunk: int, how: dict[str, Any]) -> None:
    expected = made(tmp_path, *IMAGE)
    if how.get("wanted"):
        how = {"wanted": tree_of(*IMAGE).wanted()}
    assert made(tmp_path, *IMAGE, chunk=chunk, **how) == expected


@pytest.mark.root
@pytest.mark.peer("tar")
def test_gnu_tar_extracts_same_tree_as_directory_sink(tmp_path: Path) -> None:
    made(tmp_path, *IMAGE)
    write(Directory(tmp_path / "expected", owner="keep"), *IMAGE)
    (tmp_path / "found").mkdir()
    flags = ["--xattrs", "--xattrs-include=*", "--same-owner", "--numeric-owner", "-p"]
    ended = subprocess.run(
        ["tar", "-xf", tmp_path / "image.tar", "-C", tmp_path / "found", *flags], capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert all(b"in the future" in line for line in ended.stderr.splitlines())
    found, expected = (look(tmp_path / name, directory_times=True) for name in ("found", "expected"))
    assert found == expected


@pytest.mark.peer("tar")
def test_gnu_tar_lists_archive(tmp_path: Path) -> None:
    made(tmp_path, *IMAGE)
    ended = subprocess.run(
        ["tar", "-tvf", tmp_path / "image.tar", "--numeric-owner", "--quoting-style=literal"],
        check=True,
        capture_output=True,
        env={**os.environ, "TZ": "UTC"},
    )
    lines = ended.stdout.splitlines()
    assert ended.stderr == b""
    assert lines[0].startswith(b"drwx--x--x 0/0 ")
    assert any(line.startswith(b"hrwsr-sr-x 1000/1001") and line.endswith(b" d/a link to 0") for line in lines)
    assert any(line.startswith(b"crw-rw-rw- 3/4") and b"1,3" in line for line in lines)
    assert any(b" far2 link to directory/" in line for line in lines)


def test_python_reads_archive(tmp_path: Path) -> None:
    data = made(tmp_path, *IMAGE)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        members = {member.name.encode(errors="surrogateescape"): member for member in opened}
    tree = described(tree_of(*IMAGE))
    assert {b"" if name == b"." else name for name in members} == set(tree)
    for name, member in members.items():
        _, kind, mode, uid, gid, mtime, size, *_ = tree[b"" if name == b"." else name]
        assert (member.mode, member.uid, member.gid, member.mtime) == (mode, uid, gid, mtime), name
        assert (member.uname, member.gname) == ("", "")
        assert member.islnk() or (member.isdir(), member.isreg()) == (
            kind == EntryType.DIRECTORY,
            kind == EntryType.FILE,
        )
        assert member.islnk() or member.size == size
    found = contents(data)
    assert found["d/a"] == found["d/b"] == found["0"] == b"hello" * 1000
    assert found["d/large"] == b"LARGE" * 40_000
    assert found["far2"] == b"deep"
    assert found["caf\udce9/\udcff"] == b"bytes"


def test_entries_are_sorted_by_bytes_and_directories_come_first(tmp_path: Path) -> None:
    data = made(tmp_path, [file("b/x"), file("a-b"), file("a/z"), file("B"), file("b.c")])
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        names = [member.name for member in opened]
    assert names == ["B", "a", "a/z", "a-b", "b", "b/x", "b.c"]


def test_archive_has_root_only_if_image_has_entry_for_it(tmp_path: Path) -> None:
    assert made(tmp_path, [folder("", 0o700), file("a")]).startswith(b"./\0")
    assert made(tmp_path, [file("a")]).startswith(b"a\0")


def test_empty_image_gives_empty_archive(tmp_path: Path) -> None:
    assert made(tmp_path) == bytes(2 * BLOCK)


def test_directories_without_entry_have_defaults(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(made(tmp_path, [file("i/b", mtime=5)]))) as opened:
        found = opened.getmember("i")
    assert (found.mode, found.uid, found.gid, found.mtime) == (0o755, 0, 0, 0)


def test_mtime_applies_to_all_entries(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(made(tmp_path, *IMAGE, mtime=42))) as opened:
        assert {member.mtime for member in opened} == {42}


def test_host_specific_xattrs_are_left_out_and_counted(tmp_path: Path) -> None:
    dropped = ((b"trusted.overlay.opaque", b"y"), (b"security.selinux", b"x"), (b"user.overlay.x", b"y"))
    members = [file("f", xattrs=(*dropped, (b"user.kept", b"1"))), folder("d", xattrs=dropped), hardlink("g", "f")]
    report = write(Tar(tmp_path / "image.tar"), members)
    assert (report.path, report.inodes, report.left_out) == (str(tmp_path / "image.tar"), 3, {"xattrs": 6})
    data = (tmp_path / "image.tar").read_bytes()
    assert data.count(b"SCHILY.xattr.") == 1


def test_sparse_files_are_complete_and_keep_holes(tmp_path: Path) -> None:
    from tests.unit.test_scanner import SPARSE, sparse_10  # noqa: PLC0415

    assert contents(made(tmp_path, sparse_10() + END))["s"] == SPARSE
    data = made(tmp_path, sparse_10(b"0\n", 10 << 20, b"") + END)
    assert contents(data)["s"] == bytes(10 << 20)
    assert os.stat(tmp_path / "image.tar").st_blocks * 512 < 1 << 20


content = st.one_of(st.binary(max_size=3), st.integers(0, 200_000).map(lambda size: b"c" * size))
name = st.one_of(st.sampled_from([b"a", b"b"]), st.binary(min_size=1, max_size=120)).filter(
    lambda name: not (b"/" in name or b"\0" in name or name in (b".", b"..") or name.startswith(b".wh."))
)
attributes = st.fixed_dictionaries(
    {
        "mode": st.integers(0, 0o7777),
        "uid": st.sampled_from([0, 1000, 8**7 - 1, 8**7, 2**32 - 2]),
        "mtime": st.sampled_from([0, -1, 8**11 - 1, 8**11, -(2**40)]),
        "xattrs": st.sampled_from([(), ((b"user.a", b"\n\0=\xff"),), ((b"trusted.x", b"1"), (b"user.b", b"2" * 600))]),
    }
)
path = st.lists(name, min_size=1, max_size=4).map(b"/".join)
member = st.one_of(
    st.builds(lambda path, content, how: file(path, content, **how), path, content, attributes),
    st.builds(lambda path, how: (Entry(path, EntryType.DIRECTORY, **how), b""), path, attributes),
    st.builds(lambda path, to, how: (Entry(path, EntryType.SYMLINK, linkname=to, **how), b""), path, path, attributes),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(member, max_size=6, unique_by=lambda member: member[0].path.split(b"/")[0]), st.booleans())
def test_any_image_survives_archive(tmp_path: Path, members: list[Member], linked: bool) -> None:
    if linked and members and members[0][0].type != EntryType.DIRECTORY:
        members = [*members, hardlink(b"\1link", members[0][0].path)]
    data = made(tmp_path, members)
    assert described(tree_of(data)) == described(tree_of(members))
    assert made(tmp_path, data) == data


# --- standard output


def test_standard_output_gets_same_bytes_as_file(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = made(tmp_path, *IMAGE)
    (tmp_path / "image.tar").unlink()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sink = Tar("-")
    report = write(sink, *IMAGE)
    assert report.path == "-"
    assert capfdbinary.readouterr().out == expected
    assert os.listdir(tmp_path) == []


def test_standard_output_gets_nothing_before_commit(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sink = Tar("-")
    sink.begin(Resources())
    stream(sink, 0, archive([file("a", b"x" * 1_000_000)]))
    sink.abort()
    assert capfdbinary.readouterr().out == b""


def test_closed_standard_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.__stdout__", None)
    with pytest.raises(OutputError, match="closed: standard output"):
        write(Tar("-"), [file("a")])


# --- the destination


def test_existing_file_is_refused_and_replaced_with_force(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_text("mine")
    with pytest.raises(OutputExists, match="--force"):
        write(Tar(tmp_path / "image.tar"), [file("a")])
    assert (tmp_path / "image.tar").read_text() == "mine"
    write(Tar(tmp_path / "image.tar", force=True), [file("a")])
    assert os.listdir(tmp_path) == ["image.tar"]
    assert tarfile.is_tarfile(tmp_path / "image.tar")


def test_cancelled_commit_publishes_nothing_and_sink_can_restart(tmp_path: Path) -> None:
    sink = Tar(tmp_path / "image.tar")
    sink.begin(Resources())
    stream(sink, 0, archive([file("a", b"x" * 100_000)]))
    sink.cancel()
    with pytest.raises(Aborted):
        sink.commit(tree_of([file("a", b"x" * 100_000)]))
    sink.abort()
    assert os.listdir(tmp_path) == []
    write(sink, [file("a", b"y" * 100_000)])
    assert contents((tmp_path / "image.tar").read_bytes()) == {"a": b"y" * 100_000}
    assert os.listdir(tmp_path) == ["image.tar"]


def test_abort_leaves_no_file_and_no_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    sink = Tar(tmp_path / "image.tar")
    sink.begin(Resources())
    stream(sink, 0, archive([file("a", b"x" * 5000)]))
    sink.abort()
    sink.abort()
    assert os.listdir(tmp_path) == []
    write(sink, [file("a")], [file("b")], again=(0,))
    assert os.listdir("/proc/self/fd") == before


def test_full_disk_error_names_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingPayloadWriter:
        def __init__(self, *_: object) -> None:
            pass

        def write(self, *_: object) -> int:
            return errno.ENOSPC

    monkeypatch.setattr(tar_module, "PayloadWriter", FailingPayloadWriter)
    with pytest.raises(OutputError, match=f"no space left on device: {tmp_path}.*Free some space"):
        write(Tar(tmp_path / "image.tar"), [file("d/a", b"x")])
    assert os.listdir(tmp_path) == []


# --- the choice


def test_name_and_format_select_sink(tmp_path: Path) -> None:
    chosen = [sink_for(name) for name in ("a.tar", "-", "a.tar/", "a")]
    expected: list[type] = [Tar, Tar, Directory, Directory]
    assert [type(sink) for sink in chosen] == expected
    assert isinstance(sink_for("a.tar", form="dir"), Directory)
    assert isinstance(sink_for("a", form="tar"), Tar)


@pytest.mark.parametrize(
    ("output", "how", "words"),
    [
        ("a.tar", {"owner": "me"}, "no meaning for a tar"),
        ("-", {"form": "dir"}, "a dir cannot go"),
        ("a/", {"form": "tar"}, "cannot end in '/'"),
        ("-", {"form": "squashfs"}, "a squashfs cannot go"),
    ],
)
def test_contradicting_options_are_refused(output: str, how: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        sink_for(output, **how)
