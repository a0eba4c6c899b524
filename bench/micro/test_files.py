"""Scanner and file writer: chunks to files in pytest's temporary folder (``--basetemp`` moves it).

The measured time includes the scan, because a span is valid only until the next chunk. ``test_scan`` shows that the
scan takes little of it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bench.micro.data import BIG_FILES, SMALL_FILES, chunks_of, tar_of
from bench.micro.measuring import Benchmark, report
from fastpull.native import FileWriter
from fastpull.native.layer_scanner import LayerScanner
from fastpull.sinks.directory.ownership import Ownership
from tests.support.folders import spread, temporary_folder


@pytest.mark.parametrize("files", [SMALL_FILES, BIG_FILES], ids=["many-small", "few-big"])
def test_write_files(benchmark: Benchmark, tmp_path: Path, files: tuple[int, int]) -> None:
    layer = tar_of(*files)
    chunks = chunks_of(layer)
    policy = Ownership.named("keep" if os.geteuid() == 0 else "me")

    def write(root_fd: int, spool_fd: int) -> int:
        scanner = LayerScanner("layer")
        writer = FileWriter(
            scanner.entries, root_fd, spool_fd, 0, policy.keep, policy.file_mode_and, policy.file_mode_or
        )
        errors = sum(writer.write(chunk, scanner.feed(chunk)) for chunk in chunks)
        writer.close()
        assert errors == 0
        return len(scanner.entries)

    with temporary_folder(str(tmp_path), "files-") as folder:
        spread(folder)
        opened: list[int] = []

        def prepare() -> tuple[tuple[int, int], dict[str, object]]:
            opened.extend(os.open(tempfile.mkdtemp(dir=folder), os.O_RDONLY) for _ in range(2))
            return (opened[-2], opened[-1]), {}

        entries = benchmark.pedantic(write, setup=prepare, rounds=5)
        for number in opened:
            os.close(number)
    report(benchmark, bytes=len(layer), entries=entries)
