"""Runs as files: another sink makes the same image of them, and what is no run is refused."""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastpull.errors import LayerBlocksDamaged, LayerError
from fastpull.layers.archive import archive
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from fastpull.layers.tree import origin_of
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sinks.base import Resources
from fastpull.sinks.squashfs.image import fingerprint as fingerprint_module
from fastpull.sinks.squashfs.image.fingerprint import file_fingerprint
from fastpull.sinks.squashfs.sink import Squashfs
from tests.support.layers import Member, file, folder, hardlink, symlink

NOTHING = Digest.of(b"")
BLOCK = 4096


class BlockFiles(NamedTuple):
    """The two files of a run."""

    blocks: bytes
    rest: bytes

    def __repr__(self) -> str:  # hypothesis shows what it fails with
        return f"Files of {len(self.blocks)} and {len(self.rest)} bytes"


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def members() -> st.SearchStrategy[list[Member]]:
    """Files of all kinds of sizes, some of which are equal, and what else stands in layers."""
    content = st.sampled_from((0, 1, 100, 101, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 7)).flatmap(
        lambda size: st.sampled_from((noise(size), bytes(size), b"t" * size))
    )
    return st.lists(content, max_size=12).map(
        lambda contents: [
            folder("d", mtime=7),
            *[file(f"d/{number}", content, uid=number) for number, content in enumerate(contents)],
            symlink("s", "d"),
            file("e", b"x" * 50, xattrs=((b"user.a", b"b"),)),
            hardlink("h", "e"),
        ]
    )


@contextlib.contextmanager
def begun(path: str, **options: Any) -> Iterator[Squashfs]:
    sink = Squashfs(path, block_size=BLOCK, time=0, **options)
    sink.begin(Resources())
    try:
        yield sink
    finally:
        sink.abort()


def unpack(sink: Squashfs, number: int, layer: list[Member]) -> LayerIndex:
    scanner, data = LayerScanner("layer"), archive(layer)
    writer = sink.layer(number, number, scanner.entries, None)
    writer.write(data, scanner.feed(data))
    scanner.finish()
    writer.finish()
    writer.close()
    return scanner.index(NOTHING, NOTHING, len(data))


def save(sink: Squashfs, number: int, index: LayerIndex) -> BlockFiles:
    """The two files of a run."""
    end, run = sink.save_run(number, index), sink._runs[number]
    base = run.blocks.end - sum(word & 0xFFFFFF for word in run.blocks.words)
    return BlockFiles(os.pread(run.blocks.fd, run.blocks.end - base, base), os.pread(run.fragments.fd, end, 0))


def load(sink: Squashfs, number: int, rank: int, files: BlockFiles) -> LayerIndex:
    run = sink.open_run(number, rank)
    os.pwrite(run.blocks.fd, files.blocks, run.blocks.end)
    os.pwrite(run.fragments.fd, files.rest, 0)
    return sink.load_run(number, len(files.blocks), len(files.rest), "layer 1")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(members(), min_size=1, max_size=3), st.sampled_from(("zstd:1", "gzip:1", "none")), st.booleans())
def test_an_image_of_saved_runs_is_that_of_the_layers(
    tmp_path: Path, layers: list[list[Member]], compression: str, fragments: bool
) -> None:
    options = {"compression": compression, "fragments": fragments, "force": True}
    with begun(f"{tmp_path}/one", **options) as one, begun(f"{tmp_path}/two", **options) as two:
        indexes = [unpack(one, number, layer) for number, layer in enumerate(layers)]
        files = [save(one, number, index) for number, index in enumerate(indexes)]
        loaded = [load(two, number, number, one_run) for number, one_run in enumerate(files)]
        assert [index.columns for index in loaded] == [index.columns for index in indexes]
        for number, layer in enumerate(layers):
            for entry, (_, content) in enumerate(layer):
                assert two.read_file(origin_of(number, entry), len(content)) == content
        one.commit(merge(indexes))
        two.commit(merge(loaded))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> BlockFiles:
    layer = [file("a", noise(3 * BLOCK + 5)), file("b", b"b"), folder("d"), symlink("l", "a"), file("c", noise(BLOCK))]
    with begun(f"{tmp_path_factory.mktemp('run')}/image") as sink:
        return save(sink, 0, unpack(sink, 0, layer))


def head_of(rest: bytes) -> tuple[int, int, dict[str, Any]]:
    start = rest.index(b"\n", rest.index(b"fastpull run")) + 1
    stop = rest.index(b"\n", start)
    return start, stop, json.loads(rest[start:stop])


def with_head(**changed: Any) -> Callable[[BlockFiles], BlockFiles]:
    def change(files: BlockFiles) -> BlockFiles:
        start, stop, head = head_of(files.rest)
        rest = files.rest[:start] + json.dumps({**head, **changed}).encode() + files.rest[stop:]
        return BlockFiles(files.blocks, rest)

    return change


def with_column(number: int, form: str, value: int) -> Callable[[BlockFiles], BlockFiles]:
    """Changes the first value of a column."""

    def change(files: BlockFiles) -> BlockFiles:
        _, stop, head = head_of(files.rest)
        at = stop + 1 + sum(head["sizes"][:number])
        rest = bytearray(files.rest)
        struct.pack_into(f"={form}", rest, at, value)
        return BlockFiles(files.blocks, bytes(rest))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda files: BlockFiles(files.blocks, b""), "0 bytes are too few", id="empty"),
        pytest.param(lambda files: files._replace(rest=files.rest[:-1]), "no footer", id="cut off"),
        pytest.param(lambda files: files._replace(blocks=files.blocks[:-1]), "blocks of", id="fewer blocks"),
        pytest.param(
            lambda files: files._replace(rest=files.rest.replace(b"run 1", b"run 9")), "another version", id="version"
        ),
        pytest.param(with_head(block_size=8192), "made otherwise", id="block size"),
        pytest.param(with_head(codecs={"libzstd": "0.1"}), "made otherwise", id="codec"),
        pytest.param(with_head(byte_order="middle"), "made otherwise", id="byte order"),
        pytest.param(with_head(sizes=[1, 2]), "other columns", id="columns"),
        pytest.param(with_head(sizes="abc"), "unsupported operand", id="columns of words"),
        pytest.param(with_column(0, "I", 7), "blocks of", id="block word"),
        pytest.param(with_column(2, "Q", 99), "entry 0 has blocks that are not there", id="first block"),
        pytest.param(with_column(3, "I", 99), "a slot that is not there", id="slot"),
        pytest.param(with_column(4, "I", 99), "a fragment block that is not there", id="fragment block"),
        pytest.param(with_column(5, "I", BLOCK), "ends behind its fragment block", id="offset"),
        pytest.param(with_column(6, "I", 3), "has another length", id="length of a tail"),
    ],
)
def test_what_is_no_run_is_refused(
    tmp_path: Path, saved: BlockFiles, change: Callable[[BlockFiles], BlockFiles], reason: str
) -> None:
    with begun(f"{tmp_path}/image") as sink, pytest.raises(LayerBlocksDamaged) as caught:
        load(sink, 0, 0, change(saved))
    assert reason in str(caught.value)
    assert "layer 1" in str(caught.value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_whatever_is_changed_there_is_no_other_error(
    tmp_path: Path, saved: BlockFiles, changes: list[tuple[int, int]]
) -> None:
    rest = bytearray(saved.rest)
    for at, change in changes:
        rest[at % len(rest)] ^= change
    # what is no run is refused; what is one may still be no layer
    with begun(f"{tmp_path}/image", force=True) as sink, contextlib.suppress(LayerBlocksDamaged, LayerError):
        merge([load(sink, 0, 0, BlockFiles(saved.blocks, bytes(rest)))])


@given(st.binary(max_size=200), st.integers(1, 70), st.integers(1, 9))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_fingerprint_of_a_file_is_that_of_all_its_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, part: int, ahead: int
) -> None:
    monkeypatch.setattr(fingerprint_module, "_PART", part)
    monkeypatch.setattr(fingerprint_module, "_AHEAD", ahead)

    def fingerprint(content: bytes) -> str:
        (tmp_path / "file").write_bytes(content)
        with open(tmp_path / "file", "rb") as opened, ThreadPoolExecutor(2) as pool:
            return file_fingerprint(opened.fileno(), pool, lambda: None)

    one = fingerprint(content)
    assert fingerprint(content) == one
    assert fingerprint(content + b"\0") != one
    if content:
        assert fingerprint(content[:-1] + bytes([content[-1] ^ 1])) != one


def test_a_file_that_becomes_shorter_while_it_is_looked_at_is_an_error_of_the_filesystem(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(100))
    with open(path, "rb") as opened, pytest.raises(OSError, match="shorter"):
        fingerprint_module._part(opened.fileno(), 0, 200)
