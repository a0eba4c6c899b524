"""The format that an output's name selects."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastpull
from fastpull.errors import InvalidSetting
from fastpull.sinks.formats import format_of


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("image.sqsh", "squashfs"),
        ("image.squashfs", "squashfs"),
        ("image.sqfs", "squashfs"),
        ("image.tar", "tar"),
        ("image.tar.gz", "tar.gz"),
        ("image.tgz", "tar.gz"),
        ("image.tar.zst", "tar.zst"),
        ("debian-12.1.tar.zst", "tar.zst"),
        ("-", "tar"),
        ("rootfs", "dir"),
        ("rootfs/", "dir"),
        ("image.sqsh/", "dir"),
        ("foo.sif/", "dir"),
        ("a.b/rootfs", "dir"),
        ("rootfs-1.2", "dir"),
        ("debian.12", "dir"),
        ("app-v1.2.3-rc1", "dir"),
        ("app.v2", "dir"),
        ("ubuntu-22.04_20240101", "dir"),
        (".rootfs", "dir"),
        ("rootfs.", "dir"),
        ("..", "dir"),
        ("/", "dir"),
    ],
)
def test_name_selects_format(name: str, form: str) -> None:
    assert format_of(name) == form


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("foo.sqhs", "unknown ending .sqhs (did you mean .sqsh?)"),
        ("foo.squashf", "did you mean .squashfs?"),
        ("foo.TAR", "did you mean .tar?"),
        ("foo.tar.xz", "unknown ending .xz"),
        ("foo.tar.gzip", "unknown ending .gzip"),
        ("foo.sif", "unknown ending .sif"),
        ("foo.img", "unknown ending .img"),
        ("foo.7z", "unknown ending .7z"),
        ("a/rootfs.old", "unknown ending .old"),
    ],
)
def test_unknown_ending_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        format_of(name)
    assert words in str(caught.value)
    assert "--format" in str(caught.value)
    assert "NAME/ for a directory" in str(caught.value)
    assert isinstance(fastpull.sink_for(name, form="dir"), fastpull.Directory)


def test_existing_directory_selects_directory_format(tmp_path: Path) -> None:
    (tmp_path / "rootfs.old").mkdir()
    (tmp_path / "file.old").touch()
    assert format_of(f"{tmp_path}/rootfs.old") == "dir"
    with pytest.raises(InvalidSetting):
        format_of(f"{tmp_path}/file.old")


@pytest.mark.parametrize(
    ("name", "form", "compression", "expected"),
    [
        ("x.tar", None, None, None),
        ("x.tar.gz", None, None, "gzip"),
        ("x.tar.gz", None, "gzip:9", "gzip:9"),
        ("x.tar.zst", None, "zstd:19", "zstd:19"),
        ("-", "tar.zst", None, "zstd"),
        ("x", "tar.gz", None, "gzip"),
        ("x.tar.gz", "tar", None, None),
    ],
)
def test_name_selects_compression_of_tar(
    name: str, form: str | None, compression: str | None, expected: str | None
) -> None:
    sink = fastpull.sink_for(name, form=form, compression=compression)  # type: ignore[arg-type]
    assert isinstance(sink, fastpull.Tar)
    assert sink.recipe_facts()["compression"] == expected


@pytest.mark.parametrize(
    ("name", "compression", "words"),
    [
        ("x.tar", "gzip", "no meaning for a tar output"),
        ("x.tar.gz", "zstd", "compressed with gzip"),
        ("x.tar.zst", "xz", "compressed with zstd"),
        ("x.tar.gz", "gzip:10", "levels of gzip are 1 to 9"),
        ("x.tar.zst", "zstd:0", "levels of zstd are 1 to 22"),
        ("x.tar.zst", "zstd:", "levels of zstd are 1 to 22"),
        ("x.tar.zst", "zstd:x", "levels of zstd are 1 to 22"),
    ],
)
def test_compression_that_contradicts_name_is_refused(name: str, compression: str, words: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        fastpull.sink_for(name, compression=compression)
    assert words in str(caught.value)
