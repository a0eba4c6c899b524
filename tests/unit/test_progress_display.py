"""The progress display: counters, and lines that fit any terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cli.layout import bar, cell_width, cut, duration, lines, part_of, percent, row_line, total_line
from fastpull.cli.tracker import ProgressRow, Rate, Total, Tracker
from fastpull.oci.digest import Digest
from fastpull.telemetry.events import Committing, Copying, Event, LayerDone, LayerProgress, NodeDone, NodeProgress

MIB = 1 << 20
names = st.text(alphabet=st.characters(), max_size=80) | st.sampled_from(["debian:12", "oci:\u5e03\u5c40\u5e03\u5c40"])
counts = st.integers(0, 1 << 45)


@st.composite
def some_rows(draw: st.DrawFn) -> ProgressRow:
    size = draw(counts)
    present = draw(st.integers(0, size))
    return ProgressRow(
        draw(names),
        size,
        present,
        draw(st.integers(0, present)),
        draw(st.sampled_from(["", "done", "was cached", "failed", "finishing the output"])),
        draw(st.booleans()),
    )


totals = st.builds(
    Total,
    title=names,
    size=counts,
    present=counts,
    read=counts,
    downloaded=counts,
    rate=st.floats(0, 1e12),
    left_seconds=st.none() | st.floats(0, 1e9),
    phase=st.sampled_from(["", "finishing the output"]),
    verb=st.sampled_from(["unpacked", "verified", "on the nodes", "copied"]),
)


@given(totals, st.lists(some_rows(), max_size=60), st.integers(1, 200), st.integers(0, 60))
def test_lines_fit_every_terminal(total: Total, rows: list[ProgressRow], width: int, height: int) -> None:
    found = lines(total, rows, width, height)
    assert len(found) <= height
    assert all(cell_width(line) <= width for line in found)
    assert all(line.isprintable() for line in found)
    assert bool(found) == bool(rows and height)


@given(totals, st.lists(some_rows(), min_size=1, max_size=60), st.integers(40, 200), st.integers(3, 60))
def test_every_row_is_shown_or_counted(total: Total, rows: list[ProgressRow], width: int, height: int) -> None:
    found = lines(total, rows, width, height)[1:]
    counted = 0
    if " more: " in found[-1] and found[-1].startswith("  and "):
        counted = int(found.pop().split()[1])
    assert len(found) + counted == len(rows)


@given(st.text(alphabet=st.characters(exclude_categories=["C"])), st.integers(0, 100))
def test_cut_text_fits_and_fitting_text_is_kept(text: str, width: int) -> None:
    found = cut(text, width)
    assert cell_width(found) <= width
    assert cell_width(text) > width or found == text


@given(some_rows(), st.integers(0, 60))
def test_bar_separates_unpacked_from_downloaded(row: ProgressRow, width: int) -> None:
    found = bar(row, width)
    assert len(found) == width
    assert found == "#" * found.count("#") + "=" * found.count("=") + "-" * found.count("-")
    if row.size:
        assert found.count("#") == width * row.read // row.size


def test_active_rows_come_first_and_others_collapse() -> None:
    done = [ProgressRow(f"done{n}", 10, 10, 10, "done", is_done=True) for n in range(20)]
    waiting = [ProgressRow(f"waiting{n}", 10) for n in range(20)]
    active = [ProgressRow("active", 10, 5, 2)]
    total = Tracker().total(0)
    found = lines(total, [*done, *waiting, *active], 80, 6)
    assert len(found) == 6
    assert sum("active" in line for line in found) == 1
    assert found[-1] == "  and 37 more: 20 done, 17 waiting"


def test_line_forms_by_width() -> None:
    total = Total("debian:12", 100 * MIB, 60 * MIB, 25 * MIB, 50 * MIB, 10 * MIB, 7.6, "", "unpacked")
    whole = "debian:12  25%  50.0 MiB downloaded, 25.0 of 100.0 MiB unpacked  10.0 MiB/s  0:08 left"
    assert total_line(total) == whole
    assert total_line(total, 80) == whole.removeprefix("debian:12  ")
    assert total_line(total, 79) == whole.removeprefix("debian:12  ")
    assert total_line(total, 50) == "25%  25.0 of 100.0 MiB  10.0 MiB/s  0:08 left"
    assert total_line(total, 20) == "25%  0:08 left"
    assert total_line(total, 4) == "25%"
    row = ProgressRow("0123456789ab", 12 * MIB, 6 * MIB, 3 * MIB)
    assert row_line(row, 12, "unpacked", 100) == (
        "  0123456789ab [######======------------]  6.0 MiB here, 3.0 of 12.0 MiB unpacked  downloading"
    )
    assert row_line(row, 12, "unpacked", 79) == (
        "  0123456789ab [######======------------]  3.0 of 12.0 MiB  downloading"
    )
    assert row_line(row, 12, "unpacked", 30) == "0123456789ab [##===-----]  25%"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-:--"), (0, "0:00"), (59.6, "1:00"), (3599.4, "59:59"), (3600, "1:00:00"), (9e9, "-:--")],
)
def test_time_left_is_shown_in_units(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [
        (0, 0, "0 of 0 B"),
        (7, 379, "7 of 379 B"),
        (379, 379, "379 of 379 B"),
        (1024, 1536, "1.0 of 1.5 KiB"),
        (0, 100 * MIB, "0.0 of 100.0 MiB"),
        (MIB, 3 << 30, "0.0 of 3.0 GiB"),
    ],
)
def test_two_sizes_share_their_unit(part: int, whole: int, words: str) -> None:
    assert part_of(part, whole) == words


@given(counts, counts)
def test_part_is_never_shown_larger_than_the_whole(part: int, whole: int) -> None:
    part, whole = sorted((part, whole))
    first, _, second, _ = part_of(part, whole).split()
    assert float(first) <= float(second)


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 50))
def test_100_percent_means_complete(part: int, whole: int) -> None:
    assert (percent(part, whole) == "100%") == (part >= whole)


def test_rate_follows_the_last_seconds_and_ends_at_0() -> None:
    rate = Rate()
    for tick in range(100):
        rate.add(tick / 10, 1000)
    assert 9_000 < rate.at(9.9) < 11_000
    for tick in range(100, 200):
        rate.add(tick / 10, 100)
    assert 900 < rate.at(19.9) < 1_100
    assert rate.at(60.0) == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1 << 40)), max_size=50))
def test_rate_is_never_negative(steps: list[tuple[float, int]]) -> None:
    rate, now = Rate(), 0.0
    for pause, amount in steps:
        now += pause
        rate.add(now, amount)
        assert rate.at(now) >= 0


DIGESTS = [Digest("sha256", str(number) * 64) for number in range(10)]


def follow(*events: Event, shows_nodes: bool = False) -> Tracker:
    tracker = Tracker(shows_nodes=shows_nodes)
    for number, event in enumerate(events):
        tracker.note(event, float(number))
    return tracker


def test_downloaded_and_unpacked_bytes_are_separate() -> None:
    tracker = follow(
        LayerProgress("a", DIGESTS[0], 100, 0, 0, 0),
        LayerProgress("a", DIGESTS[0], 100, 10, 30, 60),
        LayerProgress("a", DIGESTS[1], 50, 0, 0, 50),
        LayerDone("a", DIGESTS[1], 50, 70, was_cached=True),
        LayerDone("a", DIGESTS[2], 7, 9, was_cached=False),
    )
    total = tracker.total(5.0)
    assert (total.size, total.present, total.read, total.downloaded) == (157, 117, 67, 67)
    assert total.verb == "unpacked"
    assert [row.word for row in tracker.rows()] == ["downloading", "was cached", "done"]


def test_time_left_is_that_of_the_slower_stage() -> None:
    events = [LayerProgress("a", DIGESTS[0], 1000, 10 * n, 0, 100 * n) for n in range(1, 6)]
    total = follow(*events).total(5.0)
    assert total.left_seconds is not None
    assert 950 / 12 < total.left_seconds < 950 / 7


def test_copy_of_a_finished_image_has_progress() -> None:
    tracker = follow(Committing("a", 3), Copying("a", 1000, 0), Copying("a", 1000, 400))
    total = tracker.total(3.0)
    assert (total.size, total.read, total.verb) == (1000, 400, "copied")
    assert [row.word for row in tracker.rows()] == ["copying"]


def test_each_of_several_images_has_a_row() -> None:
    tracker = follow(
        LayerProgress("a", DIGESTS[0], 100, 50, 0, 60),
        LayerDone("b", DIGESTS[1], 50, 0, was_cached=False),
        LayerProgress("c", DIGESTS[2], 10, 0, 0, 0),
    )
    assert [(row.name, row.word) for row in tracker.rows()] == [("a", "downloading"), ("b", "done"), ("c", "waiting")]
    assert tracker.total(3.0).title == "1 of 3 images"


def test_nodes_of_a_job_are_rows() -> None:
    tracker = follow(
        NodeProgress("a", 0, "n0", 100, 100),
        NodeProgress("a", 1, "n1", 100, 20),
        NodeDone("a", 0, "n0", 1.0, 100, 0, ""),
        NodeDone("a", 1, "n1", 1.0, 0, 0, "no space left"),
        shows_nodes=True,
    )
    assert [(row.name, row.word) for row in tracker.rows()] == [("rank 0 on n0", "done"), ("rank 1 on n1", "failed")]
