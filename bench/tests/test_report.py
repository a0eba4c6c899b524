"""Tables, charts and summaries of the benchmark's samples."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import peers
from bench.charts import Bar, BarSegment, draw, write_charts
from bench.comparisons import COMPARISONS, Comparison, choose
from bench.limits import LimitStage, LimitWork
from bench.measure import OutputSize, ProcessUsage
from bench.report import document, limit_table, summarize, summarize_limits, table
from bench.rounds import Results, Sample, StageSample
from bench.scaling import DIMENSIONS, Dimension, steps_of
from bench.scaling import table as scaling_table
from tests.support.setup_errors import SetupError

COMPARISON = Comparison("job", (peers.fastpull("rootfs"), peers.umoci()), (LimitStage.RECEIVE, LimitStage.INFLATE))


def sample(number: int, peer: str, seconds: float, written: int = 0) -> Sample:
    usage = ProcessUsage(seconds, 2 * seconds, 1 << 20, written)
    return Sample("job", "tmpfs", number, peer, usage, OutputSize(3, 1000))


def results() -> Results:
    ours = [sample(0, "fastpull", 2.0, 1500), sample(1, "fastpull", 4.0, 1500), sample(2, "fastpull", 3.0, 1500)]
    theirs = [sample(0, "skopeo+umoci", 6.0, 20), sample(1, "skopeo+umoci", 8.0, 20)]
    work = LimitWork({LimitStage.RECEIVE: (0.5, 0.5), LimitStage.INFLATE: (0.5, 0.5)}, 400_000_000, 1_000_000_000, 9)
    return Results([*ours, *theirs], [StageSample("job", "tmpfs", number, work) for number in range(3)])


def test_row_has_median_and_extremes() -> None:
    row = summarize(results(), [COMPARISON], cores=2)[0]
    assert (row.wall_seconds, row.wall_seconds_min, row.wall_seconds_max) == (3.0, 2.0, 4.0)
    assert (row.cpu_seconds, row.cpu_seconds_per_gb) == (6.0, 6.0)


def test_ratios_are_medians_over_rounds() -> None:
    first, second = summarize(results(), [COMPARISON], cores=2)
    assert (first.to_first, first.to_limit) == (1.0, 3.0)
    assert (second.to_first, second.to_limit) == (2.5, 7.0)


def test_uncounted_writes_are_omitted() -> None:
    first, second = summarize(results(), [COMPARISON], cores=2)
    assert (first.written_ratio, second.written_ratio) == (1.5, None)


def test_ratio_to_limit_needs_a_limit() -> None:
    plain = Results(results().samples)
    assert summarize(plain, [COMPARISON], cores=2)[0].to_limit is None
    assert summarize_limits(plain, [COMPARISON], cores=2) == []


def test_tables_are_aligned_and_document_is_json() -> None:
    for text in (
        table(summarize(results(), [COMPARISON], cores=2)),
        limit_table(summarize_limits(results(), [COMPARISON], cores=2)),
    ):
        assert len({len(line.rstrip()) for line in text.splitlines()[:2]}) == 1
    written = json.loads(json.dumps(document(results(), [COMPARISON], {"image": {"name": "some"}}, 2)))
    assert written["limits"][0]["stages"] == {"receive": 1.0, "inflate": 1.0}
    assert len(written["samples"]) == 5


def test_charts_are_well_formed_with_a_bar_for_each_peer(tmp_path: Path) -> None:
    written = document(results(), [COMPARISON], {"image": {"name": "a <small> & simple one"}}, 2)
    paths = write_charts(written, str(tmp_path), "some")
    assert [path.rpartition("/")[2] for path in paths] == ["some-tmpfs-peers.svg", "some-tmpfs-stages.svg"]
    rectangles = [len(ET.parse(path).findall("{http://www.w3.org/2000/svg}rect")) for path in paths]
    assert rectangles == [3, 2 + 2]  # a limit and two peers; two stages and their legend


def test_bars_are_to_scale_and_within_the_chart() -> None:
    bars = [
        Bar("one", (BarSegment("a", 1, "red"), BarSegment("b", 3, "blue"))),
        Bar("heading"),
        Bar("two", (BarSegment("a", 2, "red"),)),
    ]
    root = ET.fromstring(draw("title", bars))
    widths = [float(found.attrib["width"]) for found in root.iter("{http://www.w3.org/2000/svg}rect")][2:]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)
    assert sum(widths[:2]) < float(root.attrib["width"])


def test_chart_without_bars_is_valid() -> None:
    assert ET.fromstring(draw("nothing", [])).tag.endswith("svg")


def test_comparisons_have_unique_names() -> None:
    assert len({comparison.key for comparison in COMPARISONS}) == len(COMPARISONS)
    assert [comparison.name for comparison in choose("download-20-ms,directory")] == ["download, 20 ms", "directory"]
    assert {comparison.name for comparison in choose("usual")} < {comparison.name for comparison in choose("all")}
    with pytest.raises(SetupError, match="unknown output 'nonsense'"):
        choose("nonsense")


def test_peers_without_zstd_are_left_out_of_zstd_images() -> None:
    for comparison in COMPARISONS:
        names = [peer.name for peer in comparison.eligible(is_zstd=True).peers]
        assert comparison.name == "writer" or names[0].startswith("fastpull")
        assert not any("umoci" in name for name in names)
    assert "skopeo+umoci" in [peer.name for peer in COMPARISONS[0].eligible(is_zstd=False).peers]


def test_growth_is_relative_to_the_previous_size() -> None:
    runs = [
        (10, [ProcessUsage(1.0, 2.0, 100, 0), ProcessUsage(3.0, 2.0, 90, 0)]),
        (20, [ProcessUsage(5.0, 3.0, 150, 0)]),
    ]
    steps = steps_of("entries", "directory", runs)
    growth = [(step.seconds, step.time_growth, step.cpu_growth, step.rss_growth) for step in steps]
    assert growth == [(2.0, None, None, None), (5.0, 2.5, 1.5, 1.5)]
    assert "2.50x" in scaling_table(steps)


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda dimension: dimension.name)
def test_each_size_is_twice_the_previous_one(dimension: Dimension) -> None:
    assert all(after == 2 * before for before, after in pairwise(dimension.numbers))
