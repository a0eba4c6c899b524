"""The directory sink without a registry: layers are scanned from memory, in the order that a test chooses."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import threading
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from fastpull import native
from fastpull.concurrency.threads import Aborted
from fastpull.errors import LayerError, OutputError, OutputExists
from fastpull.layers.archive import archive
from fastpull.layers.merge import merge
from fastpull.layers.tree import Tree
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sinks.base import Resources, SinkReport
from fastpull.sinks.directory import sink as directory_module
from fastpull.sinks.directory.ownership import OwnerName
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.output import staging as staging_module
from tests.support.headers import END
from tests.support.layers import Member, device, fifo, file, folder, hardlink, opaque, symlink, whiteout
from tests.support.trees import look, names

IS_ROOT = os.geteuid() == 0
SOME_TIME = 1_600_000_000


def write(
    destination: Path,
    *layers: list[Member],
    order: list[int] | None = None,
    chunk: int = 100_000,
    force: bool = False,
    replace_foreign: bool = False,
    owner: OwnerName | None = None,
    again: tuple[int, ...] = (),
) -> SinkReport:
    """Write layers to a directory sink in ``order``, and layers in ``again`` twice."""
    sink = Directory(destination, force=force, replace_foreign=replace_foreign, owner=owner)
    try:
        sink.begin(Resources())
        indexes = {}
        for number in [*(order or range(len(layers))), *again]:
            scanner = LayerScanner("layer")
            writer = sink.layer(number, number, scanner.entries, None)
            data = archive(layers[number])
            for at in range(0, len(data), chunk):
                piece = data[at : at + chunk]
                writer.write(piece, scanner.feed(piece))
            scanner.finish()
            writer.close()
            indexes[number] = scanner.index(Digest.of(b""), Digest.of(b""), len(data))
        return sink.commit(merge([indexes[number] for number in range(len(layers))]))
    finally:
        sink.abort()


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if ".fastpull-" in name]


# --- content


@pytest.mark.parametrize("parent", ["", "d/"])
def test_whiteouts_hide_names_of_any_length(tmp_path: Path, parent: str) -> None:
    long = [parent + "n" * size for size in range(249, 256)]
    lower = [file(f"{parent}stays"), *(file(name) for name in long)]
    markers = [whiteout(name) for name in long[:-1]] + [file(f"{parent}.wh.{'n' * 255}", b"a marker with content")]
    write(tmp_path / "out", lower, markers)
    assert names(tmp_path / "out" / parent) == {"stays"}


def test_long_name_below_whiteout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="below a whiteout"):
        write(tmp_path / "out", [file(f".wh.{'n' * 255}/x/y", b"content")])


def test_files_below_symlinks_of_same_layer_are_written_to_target(tmp_path: Path) -> None:
    layer = [folder("usr/lib"), symlink("lib", "usr/lib"), file("lib/x", b"1"), file("lib/new/y", b"2"), file("usr/z")]
    write(tmp_path / "out", layer, [file("usr/lib/x", b"3"), file("lib/w", b"4")])
    assert names(tmp_path / "out") == {
        "usr",
        "usr/lib",
        "usr/lib/x",
        "usr/lib/new",
        "usr/lib/new/y",
        "usr/lib/w",
        "usr/z",
        "lib",
    }
    assert (tmp_path / "out/usr/lib/x").read_bytes() == b"3"
    assert os.readlink(tmp_path / "out/lib") == "usr/lib"


def test_files_have_content_mode_and_time_of_image(tmp_path: Path) -> None:
    write(tmp_path / "out", [file("d/a", b"hello", mode=0o640, mtime=SOME_TIME), file("empty", mode=0o400, mtime=-5)])
    state = os.stat(tmp_path / "out/d/a")
    assert (tmp_path / "out/d/a").read_bytes() == b"hello"
    assert (stat.S_IMODE(state.st_mode), state.st_mtime_ns) == (0o640, SOME_TIME * 10**9)
    assert os.stat(tmp_path / "out/empty").st_mtime == -5


@pytest.mark.parametrize("chunk", [100_000, 512, 700])
def test_files_across_chunks_are_complete(tmp_path: Path, chunk: int) -> None:
    contents = [os.urandom(size) for size in (0, 1, 511, 512, 513, 5000, 100_000)]
    write(tmp_path / "out", [file(f"f{number}", content) for number, content in enumerate(contents)], chunk=chunk)
    assert [(tmp_path / f"out/f{number}").read_bytes() for number in range(len(contents))] == contents


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_order_of_layers_does_not_change_output(tmp_path: Path, order: list[int]) -> None:
    layers = [
        [
            folder("d", 0o711),
            file("d/a", b"0"),
            file("b", b"0"),
            file("gone", b"0"),
            file("x/y/z", b"0"),
            file("t", b"0"),
        ],
        [file("d/a", b"1"), whiteout("gone"), file("x", b"1"), hardlink("t2", "t"), file("n/m", b"1")],
        [file("b/c", b"2"), opaque("n"), file("n/k", b"2"), file("t", b"2"), symlink("s", "b")],
    ]
    write(tmp_path / "out", *layers, order=order)
    found = {path: entry.content for path, entry in look(tmp_path / "out").items()}
    write(tmp_path / "expected", *layers)
    assert found == {path: entry.content for path, entry in look(tmp_path / "expected").items()}
    assert names(tmp_path / "out") == {"d", "d/a", "b", "b/c", "x", "t", "t2", "n", "n/k", "s"}
    assert (tmp_path / "out/t").read_bytes() == b"2"
    assert (tmp_path / "out/t2").read_bytes() == b"0"


def test_layers_can_be_written_concurrently(tmp_path: Path) -> None:
    layers = [[file(f"d{n % 7}/f{n}", b"%d.%d" % (layer, n)) for n in range(300)] for layer in range(4)]
    sink = Directory(tmp_path / "out")
    sink.begin(Resources())
    indexes = {}

    def stream(number: int) -> None:
        scanner = LayerScanner("layer")
        writer = sink.layer(number, number, scanner.entries, None)
        data = archive(layers[number])
        for at in range(0, len(data), 1000):
            writer.write(data[at : at + 1000], scanner.feed(data[at : at + 1000]))
        writer.close()
        indexes[number] = scanner.index(Digest.of(b""), Digest.of(b""), 0)

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.commit(merge([indexes[number] for number in range(4)]))
    sink.abort()
    assert all((tmp_path / f"out/d{n % 7}/f{n}").read_bytes() == b"3.%d" % n for n in range(300))
    assert len(names(tmp_path / "out")) == 307


def test_layer_read_twice_counts_once(tmp_path: Path) -> None:
    layers = [[file("a", b"0"), file("a", b"00"), file("d/x", b"0")], [file("a", b"1"), file("b", b"1")]]
    write(tmp_path / "out", *layers, again=(0, 1, 0))
    assert names(tmp_path / "out") == {"a", "b", "d", "d/x"}
    assert (tmp_path / "out/a").read_bytes() == b"1"


def test_hard_links_share_one_inode(tmp_path: Path) -> None:
    report = write(
        tmp_path / "out",
        [file("a", b"x", mode=0o755), hardlink("d/b", "a"), symlink("s", "a"), hardlink("d/t", "s")],
        [hardlink("c", "d/b"), whiteout("a")],
    )
    assert os.stat(tmp_path / "out/c").st_ino == os.stat(tmp_path / "out/d/b").st_ino
    assert os.stat(tmp_path / "out/c").st_nlink == 2
    assert os.lstat(tmp_path / "out/s").st_ino == os.lstat(tmp_path / "out/d/t").st_ino
    assert report.inodes == 4


def test_names_are_arbitrary_bytes(tmp_path: Path) -> None:
    write(
        tmp_path / "out",
        [file(b"caf\xe9/\xff\xfe\n", b"x"), file(b"n" * 255), folder(b"\xc3\xa9"), symlink(b"l", b"\xff")],
    )
    assert set(look(tmp_path / "out")) == {b".", b"caf\xe9", b"caf\xe9/\xff\xfe\n", b"n" * 255, b"\xc3\xa9", b"l"}
    assert os.readlink(os.fsencode(tmp_path / "out/l")) == b"\xff"


def test_deep_paths_are_created(tmp_path: Path) -> None:
    deep, deeper = "/".join(["d"] * 60) + "/f", "/".join(["e"] * 254) + "/f"
    write(tmp_path / "out", [file(deep, b"1"), file(deeper, b"2")], [file(deeper, b"3")])
    assert (tmp_path / "out" / deeper).read_bytes() == b"3"


def test_sparse_files_keep_their_holes(tmp_path: Path) -> None:
    from tests.unit.test_scanner import SPARSE, sparse_10  # noqa: PLC0415

    sink = Directory(tmp_path / "out")
    sink.begin(Resources())
    scanner = LayerScanner("layer")
    writer = sink.layer(0, 0, scanner.entries, None)
    data = sparse_10() + sparse_10(b"0\n", 10 << 20, b"").replace(b"/s", b"/h").replace(b"name=s", b"name=h") + END
    # correct the checksum of the changed second header
    at = data.rindex(b"GNUSparseFile.1/h")
    header = bytearray(data[at : at + 512])
    header[148:156] = b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:])
    data = data[:at] + bytes(header) + data[at + 512 :]
    writer.write(data, scanner.feed(data))
    sink.commit(merge([scanner.index(Digest.of(b""), Digest.of(b""), 0)]))
    sink.abort()
    assert (tmp_path / "out/s").read_bytes() == SPARSE
    state = os.stat(tmp_path / "out/h")
    assert (state.st_size, state.st_blocks) == (10 << 20, 0)


# --- directories


def test_directories_without_entry_have_default_mode_and_time(tmp_path: Path) -> None:
    write(
        tmp_path / "out", [folder("", 0o711, mtime=7), folder("d", 0o1750, mtime=SOME_TIME), file("d/a"), file("i/b")]
    )
    states = {name: os.stat(tmp_path / "out" / name) for name in ("", "d", "i")}
    assert [stat.S_IMODE(state.st_mode) for state in states.values()] == [0o711, 0o1750, 0o755]
    assert [state.st_mtime for state in states.values()] == [7, SOME_TIME, 0]


def test_umask_and_parent_attributes_do_not_change_output(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o2777)
    before = os.umask(0o077)
    try:
        write(tmp_path / "out", [file("i/b", mode=0o666), folder("d", 0o777), fifo("p", mode=0o666)])
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(os.lstat(tmp_path / "out" / name).st_mode) for name in ("", "i", "i/b", "d", "p")}
    assert modes == {"": 0o755, "i": 0o755, "i/b": 0o666, "d": 0o777, "p": 0o666}


# --- ownership


def test_owner_me_gives_usable_tree(tmp_path: Path) -> None:
    report = write(
        tmp_path / "out",
        [
            folder("locked", 0o000),
            file("locked/secret", b"s", mode=0o000, uid=12345, gid=54321),
            file("su", b"x", mode=0o6755),
            folder("shared", 0o2775),
            folder("sticky", 0o1777),
            device("null", 1, 3),
            fifo("pipe"),
        ],
        owner="me",
    )
    found = look(tmp_path / "out")
    assert {(entry.uid, entry.gid) for entry in found.values()} == {(os.geteuid(), os.getegid())}
    modes = {path.decode(): oct(entry.mode) for path, entry in found.items()}
    assert modes == {
        ".": "0o755",
        "locked": "0o700",
        "locked/secret": "0o400",
        "su": "0o755",
        "shared": "0o775",
        "sticky": "0o1777",
        "pipe": "0o644",
    }
    assert report.left_out == {"setuid bits": 1, "devices": 1}


@pytest.mark.root
def test_owner_keep_keeps_owners_devices_setuid_and_xattrs(tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    write(
        tmp_path / "out",
        [
            folder("d", 0o2775, uid=1, gid=2, xattrs=((b"user.d", b"1"),)),
            file("d/su", b"x", mode=0o6755, uid=1000, gid=1001, mtime=5),
            file("ping", b"x", mode=0o755, xattrs=((b"security.capability", capability), (b"user.x", b"\0y"))),
            symlink("l", "d", uid=7, gid=8, mtime=9),
            device("null", 1, 3, mode=0o666, uid=3, gid=4, mtime=11),
            fifo("pipe", mode=0o620, uid=5, gid=6, mtime=12),
            file("big", b"", uid=4_000_000_000, gid=4_294_967_294),
        ],
    )
    found = look(tmp_path / "out", directory_times=True)
    assert (found[b"d"].mode, found[b"d"].uid, found[b"d"].gid, found[b"d"].xattrs) == (
        0o2775,
        1,
        2,
        (("user.d", b"1"),),
    )
    assert (found[b"d/su"].mode, found[b"d/su"].uid, found[b"d/su"].gid) == (0o6755, 1000, 1001)
    assert found[b"ping"].xattrs == (("security.capability", capability), ("user.x", b"\0y"))
    assert (found[b"l"].uid, found[b"l"].gid, found[b"l"].mtime_ns) == (7, 8, 9 * 10**9)
    null = found[b"null"]
    assert (null.kind, null.mode, null.uid, null.device, null.mtime_ns) == ("c", 0o666, 3, os.makedev(1, 3), 11 * 10**9)
    assert (found[b"pipe"].kind, found[b"pipe"].mode, found[b"pipe"].uid, found[b"pipe"].mtime_ns) == (
        "p",
        0o620,
        5,
        12 * 10**9,
    )
    assert (found[b"big"].uid, found[b"big"].gid) == (4_000_000_000, 4_294_967_294)


def test_host_specific_xattrs_are_left_out_and_counted(tmp_path: Path) -> None:
    dropped = (
        (b"trusted.overlay.opaque", b"y"),
        (b"security.selinux", b"x"),
        (b"system.nfs4_acl", b"x"),
        (b"user.overlay.x", b"y"),
    )
    report = write(tmp_path / "out", [file("f", xattrs=(*dropped, (b"user.kept", b"1"))), folder("d", xattrs=dropped)])
    assert os.listxattr(tmp_path / "out/f") == ["user.kept"]
    assert os.listxattr(tmp_path / "out/d") == []
    assert report.left_out["xattrs"] == 8


@pytest.mark.parametrize("mode", [0o400, 0o444, 0o555, 0o644, 0o4555])
def test_unprivileged_user_keeps_xattrs_of_read_only_files(mode: int) -> None:
    attributes = ((b"user.a", b"1"), (b"user.b", b"2"))
    members = [
        file("f", b"x", mode=mode, xattrs=attributes, mtime=SOME_TIME),
        file("one", b"y", mode=mode, xattrs=attributes),
        hardlink("two", "one"),
        folder("d", 0o555, xattrs=attributes),
    ]
    with tempfile.TemporaryDirectory() as mine:
        os.chown(mine, *((65534, 65534) if IS_ROOT else (-1, -1)))
        out = Path(mine, "out")
        assert left_out_for_plain_user(out, members) == "0"
        for name in ("f", "one", "two", "d"):
            assert os.listxattr(out / name) == ["user.a", "user.b"]
        state = os.stat(out / "f")
        assert (stat.S_IMODE(state.st_mode), state.st_mtime_ns) == (mode & 0o1777 | 0o400, SOME_TIME * 10**9)


def left_out_for_plain_user(destination: Path, members: list[Member]) -> str:
    """Write a layer in an unprivileged child process; return the number of xattrs left out, or the error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no answer"
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            said = str(write(destination, members, owner="me").left_out["xattrs"])
        except (OSError, AssertionError) as error:  # OutputError is one
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, encoding="utf-8") as answer:
        return answer.read()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.E2BIG, errno.ERANGE])
@pytest.mark.parametrize("member", [file, folder])
def test_error_names_xattr_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, member: Any
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(OutputError, match=r"attribute user\.Big of 5000 bytes is too large.*out/a\\n") as caught:
        write(tmp_path / "out", [member("a\n", xattrs=((b"user.Big", bytes(5000)),))])
    assert "Free some space" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_full_filesystem_is_reported_for_xattr_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 10, 10, 0, 255))
    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr("fastpull.sinks.directory.attributes.os.statvfs", lambda _path: full)
    with pytest.raises(OutputError, match="no space left") as caught:
        write(tmp_path / "out", [file("a", xattrs=((b"user.a", b"1"),))])
    assert caught.value.errno == errno.ENOSPC


def few_links(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Limit the hard links of a file, as some filesystems do."""
    link = os.link

    def limited(source: bytes, target: bytes, **options: Any) -> None:
        if os.stat(source, dir_fd=options["src_dir_fd"], follow_symlinks=False).st_nlink >= most:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", limited)


@pytest.mark.parametrize("names_of_each", [2, 4, 5, 13])
def test_hard_links_beyond_limit_of_filesystem_become_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_of_each: int
) -> None:
    content = os.urandom(100_000)
    originals = [
        file("f", content, mode=0o444, mtime=SOME_TIME, xattrs=((b"user.a", b"1"),), uid=1, gid=2),
        symlink("s", "f", mtime=SOME_TIME),
        fifo("p", mode=0o640, mtime=SOME_TIME),
    ]
    links = [hardlink(f"{name}{number:02}", name) for name in "fsp" for number in range(1, names_of_each)]
    few_links(monkeypatch, 4)
    report = write(tmp_path / "out", [*originals, *links])
    found = look(tmp_path / "out")
    for name in "fsp":
        same = [path for path in found if path.startswith(name.encode())]
        assert len(same) == names_of_each
        looks = {(found[path].kind, found[path].mode, found[path].uid, found[path].mtime_ns) for path in same}
        assert len(looks) == 1
        assert {(found[path].content, found[path].xattrs) for path in same} == {
            (found[same[0]].content, found[same[0]].xattrs)
        }
        numbers = {os.lstat(tmp_path / "out" / os.fsdecode(path)).st_ino for path in same}
        assert len(numbers) == -(-names_of_each // 4)
    copies = 3 * (-(-names_of_each // 4) - 1)
    assert [f"{copies} copies" in warning for warning in report.warnings] == ([True] if copies else [])


@pytest.mark.slow
def test_hard_links_beyond_limit_of_ext4_become_copies(tmp_path: Path) -> None:
    count = 65_001
    members = [file("f", b"x"), *(hardlink(f"d{number % 8}/{number}", "f") for number in range(count - 1))]
    report = write(tmp_path / "out", members)
    found = os.stat(tmp_path / "out/f").st_nlink
    assert (found == count) == (not report.warnings)
    assert sum(len(files) for _, _, files in os.walk(tmp_path / "out")) == count


def test_hard_links_to_left_out_devices_are_left_out(tmp_path: Path) -> None:
    report = write(tmp_path / "out", [device("a", 1, 3), hardlink("b", "a"), file("c")], owner="me")
    assert names(tmp_path / "out") == {"c"}
    assert report.left_out["devices"] == 1


# --- the destination


def test_empty_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", [file("a")])
    assert names(tmp_path / "out") == {"a"}


def test_nonempty_directory_is_refused_before_staging(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(OutputExists, match=r"1 entry \(mine\).*with --force --replace-foreign") as caught:
        write(out, [file("a")])
    assert caught.value.exit_code == 31
    assert leftovers(tmp_path) == []
    assert names(out) == {"mine"}


@pytest.mark.parametrize("kind", ["rootfs", "foreign", "nothing"])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_directory_is_replaced_if_rules_allow(
    tmp_path: Path, kind: str, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr("fastpull.sinks.output.staging.exchange", lambda *_: errno.EINVAL)
    out = tmp_path / "out"
    if kind != "nothing":
        for name in ("etc", "usr", "bin") if kind == "rootfs" else ("old",):
            (out / name / "deep").mkdir(parents=True)
            os.chmod(out / name, 0o500)
    write(out, [file("new")], force=True, replace_foreign=kind == "foreign")
    assert names(out) == {"new"}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("there", ["rootfs", "nothing"])
@pytest.mark.parametrize("comes", ["foreign", "file", "fifo"])
def test_force_does_not_replace_other_kind_created_during_pull(
    tmp_path: Path, there: str, comes: str, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr("fastpull.sinks.output.staging.exchange", lambda *_: errno.EINVAL)
    out = tmp_path / "out"
    if there == "rootfs":
        for name in ("etc", "usr", "bin"):
            (out / name).mkdir(parents=True)
    sink = Directory(out, force=True)
    sink.begin(Resources())
    if there == "rootfs":
        out.rename(tmp_path / "aside")
    if comes == "foreign":
        (out / "mine").mkdir(parents=True)
    else:
        (os.mkfifo if comes == "fifo" else Path.touch)(out)
    before = os.lstat(out)
    with pytest.raises(OutputError):
        sink.commit(merge([]))
    sink.abort()
    assert os.path.samestat(before, os.lstat(out))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("comes", ["foreign", "another pull's"])
def test_output_created_at_publication_is_swapped_back(
    tmp_path: Path, comes: str, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign directory appears after the last check; the output of another pull may be replaced."""
    out = tmp_path / "out"
    exchange = native.exchange

    def swap_first(*names: Any) -> int:
        if not (tmp_path / "aside").exists():
            out.rename(tmp_path / "aside")
            for name in ("mine",) if comes == "foreign" else ("etc", "usr", "bin"):
                (out / name).mkdir(parents=True)
        return exchange(*names) if can_exchange else errno.EINVAL

    for name in ("etc", "usr", "bin"):
        (out / name).mkdir(parents=True)
    monkeypatch.setattr(staging_module, "exchange", swap_first)
    expected = pytest.raises(OutputExists, match="has just created") if comes == "foreign" else contextlib.nullcontext()
    with expected:
        write(out, [file("new")], force=True)
    assert names(out) == ({"mine"} if comes == "foreign" else {"new"})
    assert leftovers(tmp_path) == []


def test_symlink_stays_and_its_target_directory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink("real", tmp_path / "out")
    write(tmp_path / "out", [file("a")])
    assert os.readlink(tmp_path / "out") == "real"
    assert names(tmp_path / "real") == {"a"}


def test_missing_parent_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such directory, make it first") as caught:
        write(tmp_path / "no/out", [file("a")])
    assert caught.value.exit_code == 31


def test_current_directory_and_mount_points_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="current directory"):
        write(Path(), [file("a")])
    for mount in ("/", "/proc"):
        with pytest.raises(OutputError, match="mount point|root directory"):
            write(Path(mount), [file("a")])


def test_output_created_during_pull_is_not_overwritten(tmp_path: Path) -> None:
    sink = Directory(tmp_path / "out")
    sink.begin(Resources())
    (tmp_path / "out").mkdir()
    (tmp_path / "out/theirs").write_text("x")
    with pytest.raises(OutputExists, match="has just created"):
        sink.commit(merge([]))
    sink.abort()
    assert names(tmp_path / "out") == {"theirs"}
    assert leftovers(tmp_path) == []


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    sink = Directory(tmp_path / "out")
    sink.begin(Resources())
    scanner = LayerScanner("layer")
    writer = sink.layer(0, 0, scanner.entries, None)
    data = archive([file("d/a", b"x" * 5000)])[:2000]
    writer.write(data, scanner.feed(data))
    sink.abort()
    sink.abort()
    assert os.listdir(tmp_path) == []


def test_cancelled_commit_publishes_nothing_and_sink_can_restart(tmp_path: Path) -> None:
    def stream() -> Tree:
        sink.begin(Resources())
        scanner = LayerScanner("layer")
        writer = sink.layer(0, 0, scanner.entries, None)
        data = archive([file("d/a", b"x" * 5000)])
        writer.write(data, scanner.feed(data))
        writer.close()
        return merge([scanner.index(Digest.of(b""), Digest.of(b""), len(data))])

    sink = Directory(tmp_path / "out")
    tree = stream()
    sink.cancel()
    with pytest.raises(Aborted):
        sink.commit(tree)
    sink.abort()
    assert os.listdir(tmp_path) == []
    sink.commit(stream())
    assert names(tmp_path / "out") == {"d", "d/a"}
    assert leftovers(tmp_path) == []


def test_next_pull_removes_stale_staging_and_keeps_running_one(tmp_path: Path) -> None:
    dead, running = Directory(tmp_path / "out"), Directory(tmp_path / "out")
    dead.begin(Resources())
    os.close(dead._staging.fd)  # as the kernel does for a killed process
    running.begin(Resources())
    stale = leftovers(tmp_path)
    assert len(stale) == 1, "the dead one is gone already"
    write(tmp_path / "out", [file("a")])
    assert leftovers(tmp_path) == stale
    running.abort()
    assert leftovers(tmp_path) == []
    dead._staging.fd = -1


def test_similar_name_is_not_removed_as_staging(tmp_path: Path) -> None:
    for name in (".out.fastpull-notes", ".out.fastpull-0123456", ".out.fastpull-012345678", ".outer.fastpull-01234567"):
        (tmp_path / name).mkdir()
    (tmp_path / ".out.fastpull-01234567").mkdir()
    write(tmp_path / "out", [file("a")])
    assert ".out.fastpull-01234567" not in os.listdir(tmp_path)
    assert len(os.listdir(tmp_path)) == 5


def test_ancestors_of_current_directory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    for destination in (".", "..", "../..", str(tmp_path / "a")):
        with pytest.raises(OutputError, match="current directory"):
            write(Path(destination), [file("a")], force=True)


def test_full_disk_error_names_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingFileWriter:
        failed = 0

        def write(self, *_: object) -> int:
            return errno.ENOSPC

        def close(self) -> None:
            pass

        def places(self) -> bytes:
            return b""

    monkeypatch.setattr(directory_module, "FileWriter", lambda *_: FailingFileWriter())
    with pytest.raises(OutputError, match="no space left on device: .*out/d/a.*Free some space"):
        write(tmp_path / "out", [file("d/a", b"x")])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sync", [True, False])
def test_sync_completes_before_name_is_published(tmp_path: Path, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def note(_: int) -> int:
        calls.append(("sync", (tmp_path / "out").exists()))
        return 0

    monkeypatch.setattr("fastpull.sinks.output.directory_staging.sync_filesystem", note)
    sink = Directory(tmp_path / "out")
    sink.begin(Resources(sync=sync))
    sink.commit(merge([]))
    sink.abort()
    assert calls == ([("sync", False)] if sync else [])


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("is_published", [True, False])
def test_sync_flushes_during_pull(
    tmp_path: Path, sync: bool, is_published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flusher has its own descriptor, so that `publish` also gets write-back errors."""
    calls: Queue[tuple[int, int]] = Queue()

    def note(fd: int) -> int:
        calls.put((fd, os.fstat(fd).st_ino))
        return 0

    monkeypatch.setattr("fastpull.sinks.directory.flusher.PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("fastpull.sinks.directory.flusher.sync_filesystem", note)
    sink, before = Directory(tmp_path / "out"), set(threading.enumerate())
    sink.begin(Resources(sync=sync))
    threads = [thread for thread in set(threading.enumerate()) - before if thread.name == "fastpull-flusher"]
    assert len(threads) == sync
    root = sink._staging.root_fd  # the staging has no public accessor
    for _ in range(3 * sync):
        fd, number = calls.get(timeout=10)
        assert fd != root
        assert number == os.fstat(root).st_ino
    if is_published:
        sink.commit(merge([]))
    sink.abort()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_failure_to_open_directory_for_flusher_is_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(directory_module, "Flusher", fail)
    sink = Directory(tmp_path / "out")
    with pytest.raises(OutputError, match="too many open files"):
        sink.begin(Resources(sync=True))
    sink.abort()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("there", ["folder", ""])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_failed_sync_of_name_restores_previous_output(
    tmp_path: Path, there: str, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if there:
        (out / "old").mkdir(parents=True)
    if not can_exchange:
        monkeypatch.setattr("fastpull.sinks.output.staging.exchange", lambda *_: errno.EINVAL)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink = Directory(out, force=bool(there), replace_foreign=True)
    sink.begin(Resources(sync=True))
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="input/output error"):
        sink.commit(merge([]))
    sink.abort()
    assert os.listdir(tmp_path) == (["out"] if there else [])
    assert there != "folder" or names(out) == {"old"}
