"""The simulation of many nodes: its invariants, and its agreement with measurements."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bench
from bench.calibration import MAX_ERROR, Calibration
from bench.curves import Curve, draw_curves
from bench.simulate import LARGE, STRATEGIES, TYPICAL, Server, SimulatedImage, Site, Steps, World, assign, simulate
from tests.support.slow_link import Link


def with_rates(site: Site, rates: Mapping[str, float]) -> Site:
    return Site(**{**asdict(site), **rates})


RATES = [name for name in Site.__slots__ if name.endswith("_rate")]
AT_ONCE = replace(
    TYPICAL, registry_latency_seconds=0.0, interconnect_latency_seconds=0.0, start_seconds=0.0, squash_seconds=0.0,
    mpi_seconds=0.0, poll_seconds=0.0, connections=1,
)  # fmt: skip
FAST = with_rates(AT_ONCE, dict.fromkeys(RATES, 1e15))
ONE_LAYER = SimulatedImage(layers=(1_000_000,), output=2_000_000)


@pytest.mark.parametrize("strategy", ["independent pulls", "MPI fetch", "MPI build"])
@pytest.mark.parametrize("squashed", [False, True])
def test_one_node_takes_the_time_of_a_chain_of_servers(strategy: str, squashed: bool) -> None:
    """Equal pieces take each server once, plus the slowest server for all pieces but one."""
    site = replace(
        TYPICAL, connections=1, cores=1, registry_rate=8e6, connection_rate=5e6, network_rate=9e6, receive_rate=1e15,
        disk_rate=1e7, verify_rate=4e6, inflate_rate=3e6, build_rate=1e15,
    )  # fmt: skip
    count, size = 10, ONE_LAYER.size / 10
    stages = [size / 8e6, size / 5e6, size / 9e6]
    stages += [size / 3e6, size / 3e6, 2 * size / 1e7] if squashed else [size / 4e6, size / 1e7]
    start = site.start_seconds + (site.squash_seconds if squashed else 0) + 5 * site.registry_latency_seconds
    start += site.mpi_seconds if strategy.startswith("MPI") else 0
    expected = start + sum(stages) + (count - 1) * max(stages)
    found = simulate(strategy, 1, site, ONE_LAYER, squashed=squashed, pieces=count)
    assert found.seconds == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("nodes", [1, 2, 7, 100])
@pytest.mark.parametrize("squashed", [False, True])
def test_each_strategy_downloads_the_expected_bytes(nodes: int, squashed: bool) -> None:
    for strategy in STRATEGIES:
        expected = LARGE.size * (nodes if strategy == "independent pulls" else 1)
        found = simulate(strategy, nodes, TYPICAL, LARGE, squashed=squashed)
        assert found.registry_bytes == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("nodes", [1, 3, 40])
def test_faster_server_never_slows_a_pull(strategy: str, rate: str, nodes: int) -> None:
    before = simulate(strategy, nodes, TYPICAL, LARGE, pieces=64)
    after = simulate(strategy, nodes, with_rates(TYPICAL, {rate: 2 * getattr(TYPICAL, rate)}), LARGE, pieces=64)
    assert after.seconds <= before.seconds * 1.01, "the order of pieces may change"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e6, 1e9), min_size=len(RATES), max_size=len(RATES)),
    st.integers(1, 12),
    st.sampled_from(sorted(STRATEGIES)),
    st.booleans(),
)
def test_pull_is_never_faster_than_its_slowest_server(
    rates: list[float], nodes: int, strategy: str, squashed: bool
) -> None:
    site = with_rates(TYPICAL, dict(zip(RATES, rates, strict=True)))
    found = simulate(strategy, nodes, site, LARGE, squashed=squashed, pieces=32)
    assert found.seconds >= found.registry_bytes / site.registry_rate
    assert all(0 < share <= 1 + 1e-9 for share in found.busy.values())
    assert found.seconds >= simulate(strategy, 1, FAST, LARGE, squashed=squashed, pieces=32).seconds


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 10, 1000])
def test_bottleneck_is_the_slowest_server(nodes: int) -> None:
    slow = {"registry": "registry_rate", "a node's disk": "disk_rate", "shared filesystem": "shared_rate"}
    for name, rate in slow.items():
        strategy = "shared cache" if name == "shared filesystem" else "MPI fetch"
        assert simulate(strategy, nodes, with_rates(FAST, {rate: 1e6}), LARGE, pieces=64).bottleneck == name


@pytest.mark.slow
def test_independent_pulls_are_limited_by_the_registry() -> None:
    site = replace(FAST, registry_rate=1e9)
    for nodes in (1, 10, 1000):
        found = simulate("independent pulls", nodes, site, LARGE)
        assert found.seconds == pytest.approx(nodes * LARGE.size / 1e9, rel=1e-3)


def test_server_processes_pieces_in_arrival_order() -> None:
    world = World(FAST, ONE_LAYER, 1, False, 1)
    server, order = world.add("one", 1.0), list[str]()

    def route(name: str, late: float) -> Steps:
        yield None, late
        order.append(name)
        yield server, 2.0

    assert world.run([route("late", 3.0), route("early", 1.0)], 10.0) == 15.0
    assert order == ["early", "late"]
    assert world.outcome(15.0).busy == {"one": 4.0 / 15.0}


def test_layers_are_assigned_by_size() -> None:
    assert assign([5, 1, 4, 1, 1], 2) == [0, 1, 1, 0, 1]
    assert Server("a", Link(0.0, 2.0)).take(4.0, 1.0) == 3.0


def test_simulation_agrees_with_measurements() -> None:
    """``python -m bench.nodes`` measured these points; see docs/scaling.md."""
    measured = Calibration.read(str(Path(bench.__file__).with_name("calibration.json")))
    assert {point.nodes for point in measured.points} == {1, 2, 4, 8}
    for point, outcome in measured.compare():
        assert abs(outcome.seconds / point.seconds - 1) <= MAX_ERROR, point
        assert point.registry_bytes == pytest.approx(outcome.registry_bytes, rel=0.05), point


def test_calibration_file_round_trips(tmp_path: Path) -> None:
    source = Path(bench.__file__).with_name("calibration.json")
    measured = Calibration.read(str(source))
    measured.write(str(tmp_path / "calibration.json"))
    assert Calibration.read(str(tmp_path / "calibration.json")) == measured


def test_curves_stay_within_the_chart() -> None:
    curves = [Curve("one & two", ((1, 0.5), (10_000, 80_000))), Curve("flat", ((1, 3.0), (10_000, 3.0)))]
    root = ET.fromstring(draw_curves("a < b", curves, x="nodes", y="seconds"))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 2
    for line in lines:
        for pair in line.attrib["points"].split():
            at, height = map(float, pair.split(","))
            assert 0 <= at <= 860
            assert 0 <= height <= 460
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"a < b", "one & two", "flat", "nodes", "seconds", "10,000"} <= set(words)
