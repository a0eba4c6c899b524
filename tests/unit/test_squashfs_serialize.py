"""Layer blocks in files: another sink makes the same image from them, and refuses damaged ones."""

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
    """The contents of the data file and the fragment file of a layer."""

    data: bytes
    fragments: bytes

    def __repr__(self) -> str:  # hypothesis prints it for a failing example
        return f"BlockFiles of {len(self.data)} and {len(self.fragments)} bytes"


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def members() -> st.SearchStrategy[list[Member]]:
    """Files of many sizes, some with equal content, and entries of other types."""
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
    """Save the blocks of a layer, and read both files."""
    end, saved = sink.save_layer_blocks(number, index), sink._layers[number]
    base = saved.data.end - sum(word & 0xFFFFFF for word in saved.data.words)
    return BlockFiles(os.pread(saved.data.fd, saved.data.end - base, base), os.pread(saved.fragments.fd, end, 0))


def load(sink: Squashfs, number: int, rank: int, files: BlockFiles) -> LayerIndex:
    """Load the blocks of a layer from both files."""
    opened = sink.open_layer_blocks(number, rank)
    os.pwrite(opened.data.fd, files.data, opened.data.end)
    os.pwrite(opened.fragments.fd, files.fragments, 0)
    return sink.load_layer_blocks(number, len(files.data), len(files.fragments), "layer 1")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(members(), min_size=1, max_size=3), st.sampled_from(("zstd:1", "gzip:1", "none")), st.booleans())
def test_saved_layer_blocks_give_the_same_image_as_the_layers(
    tmp_path: Path, layers: list[list[Member]], compression: str, fragments: bool
) -> None:
    options = {"compression": compression, "fragments": fragments, "force": True}
    with begun(f"{tmp_path}/one", **options) as one, begun(f"{tmp_path}/two", **options) as two:
        indexes = [unpack(one, number, layer) for number, layer in enumerate(layers)]
        files = [save(one, number, index) for number, index in enumerate(indexes)]
        loaded = [load(two, number, number, saved) for number, saved in enumerate(files)]
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
    with begun(f"{tmp_path_factory.mktemp('saved')}/image") as sink:
        return save(sink, 0, unpack(sink, 0, layer))


def header_of(content: bytes) -> tuple[int, int, dict[str, Any]]:
    """Return the start, the end and the fields of the JSON header in a fragment file."""
    start = content.index(b"\n", content.index(b"fastpull run")) + 1
    stop = content.index(b"\n", start)
    return start, stop, json.loads(content[start:stop])


def with_header(**changed: Any) -> Callable[[BlockFiles], BlockFiles]:
    """Replace fields of the header."""

    def change(files: BlockFiles) -> BlockFiles:
        start, stop, header = header_of(files.fragments)
        content = files.fragments[:start] + json.dumps({**header, **changed}).encode() + files.fragments[stop:]
        return BlockFiles(files.data, content)

    return change


def with_column(number: int, type_code: str, value: int) -> Callable[[BlockFiles], BlockFiles]:
    """Replace the first value of a column."""

    def change(files: BlockFiles) -> BlockFiles:
        _, stop, header = header_of(files.fragments)
        at = stop + 1 + sum(header["sizes"][:number])
        content = bytearray(files.fragments)
        struct.pack_into(f"={type_code}", content, at, value)
        return BlockFiles(files.data, bytes(content))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda files: BlockFiles(files.data, b""), "only 0 bytes", id="empty"),
        pytest.param(lambda files: files._replace(fragments=files.fragments[:-1]), "no footer", id="truncated"),
        pytest.param(lambda files: files._replace(data=files.data[:-1]), "blocks of", id="fewer data blocks"),
        pytest.param(
            lambda files: files._replace(fragments=files.fragments.replace(b"run 1", b"run 9")),
            "another version",
            id="version",
        ),
        pytest.param(with_header(block_size=8192), "another format", id="block size"),
        pytest.param(with_header(codecs={"libzstd": "0.1"}), "another format", id="codec"),
        pytest.param(with_header(byte_order="middle"), "another format", id="byte order"),
        pytest.param(with_header(sizes=[1, 2]), "other columns", id="columns"),
        pytest.param(with_header(sizes="abc"), "unsupported operand", id="columns as text"),
        pytest.param(with_column(0, "I", 7), "blocks of", id="block word"),
        pytest.param(with_column(2, "Q", 99), "entry 0 has data blocks that do not exist", id="first block"),
        pytest.param(with_column(3, "I", 99), "a tail ID that does not exist", id="tail ID"),
        pytest.param(with_column(4, "I", 99), "a fragment block that does not exist", id="fragment block"),
        pytest.param(with_column(5, "I", BLOCK), "extends past its fragment block", id="offset"),
        pytest.param(with_column(6, "I", 3), "has another length", id="length of a tail-end"),
    ],
)
def test_inconsistent_files_are_refused(
    tmp_path: Path, saved: BlockFiles, change: Callable[[BlockFiles], BlockFiles], reason: str
) -> None:
    with begun(f"{tmp_path}/image") as sink, pytest.raises(LayerBlocksDamaged) as caught:
        load(sink, 0, 0, change(saved))
    assert reason in str(caught.value)
    assert "layer 1" in str(caught.value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_any_changed_bytes_give_no_other_error(
    tmp_path: Path, saved: BlockFiles, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(saved.fragments)
    for at, change in changes:
        content[at % len(content)] ^= change
    # consistent files may still hold an invalid layer
    with begun(f"{tmp_path}/image", force=True) as sink, contextlib.suppress(LayerBlocksDamaged, LayerError):
        merge([load(sink, 0, 0, BlockFiles(saved.data, bytes(content)))])


@given(st.binary(max_size=200), st.integers(1, 70), st.integers(1, 9))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_fingerprint_covers_every_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, part: int, ahead: int
) -> None:
    monkeypatch.setattr(fingerprint_module, "_PART_SIZE", part)
    monkeypatch.setattr(fingerprint_module, "_MAX_PENDING", ahead)

    def fingerprint(content: bytes) -> str:
        (tmp_path / "file").write_bytes(content)
        with open(tmp_path / "file", "rb") as opened, ThreadPoolExecutor(2) as pool:
            return file_fingerprint(opened.fileno(), pool, lambda: None)

    one = fingerprint(content)
    assert fingerprint(content) == one
    assert fingerprint(content + b"\0") != one
    if content:
        assert fingerprint(content[:-1] + bytes([content[-1] ^ 1])) != one


def test_a_file_that_shrinks_while_it_is_hashed_raises_os_error(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(100))
    with open(path, "rb") as opened, pytest.raises(OSError, match="shorter"):
        fingerprint_module._hash_part(opened.fileno(), 0, 200)
