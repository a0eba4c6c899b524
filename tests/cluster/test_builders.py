"""The choice of builders: every layer has one source, and the work is balanced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cluster.build.builders import MemberState, choose_sources, differing_groups, lacking


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[int], dict[int, MemberState], list[int | None]]:
    sizes = draw(st.lists(st.integers(0, 100), min_size=1, max_size=8))
    layers = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=12))
    ranks = draw(st.sets(st.integers(0, 9), min_size=1, max_size=6))
    blobs = st.frozensets(st.integers(0, len(sizes) - 1))
    artifacts = st.lists(st.booleans(), min_size=len(layers), max_size=len(layers)).map(tuple)
    members = {rank: MemberState(draw(blobs), draw(artifacts)) for rank in ranks}
    before = draw(st.lists(st.none() | st.integers(0, 9), min_size=len(layers), max_size=len(layers)))
    return layers, sizes, members, before


@given(cases())
def test_every_layer_has_a_participating_source(
    case: tuple[list[int], list[int], dict[int, MemberState], list[int | None]],
) -> None:
    layers, _, members, before = case
    sources = choose_sources(*case)
    assert len(sources) == len(layers)
    assert set(sources) <= members.keys()
    for layer, source in enumerate(sources):
        holders = [rank for rank in members if members[rank].artifacts[layer]]
        assert not holders or source in holders, "no layer is built twice"
        if not holders and before[layer] in members:
            assert source == before[layer], "a builder goes on"
        assert source not in lacking(members, layer, source)
        assert {source, *lacking(members, layer, source), *holders} == members.keys()


@given(cases())
def test_choice_does_not_depend_on_the_order_of_ranks(
    case: tuple[list[int], list[int], dict[int, MemberState], list[int | None]],
) -> None:
    layers, sizes, members, before = case
    assert choose_sources(layers, sizes, dict(reversed(members.items())), before) == choose_sources(*case)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(1, 6), st.data())
def test_work_is_balanced_also_where_some_ranks_have_blobs(sizes: list[int], ranks: int, data: st.DataObject) -> None:
    blobs = st.frozensets(st.integers(0, len(sizes) - 1))
    layers = list(range(len(sizes)))
    members = {rank: MemberState(data.draw(blobs), (False,) * len(layers)) for rank in range(ranks)}
    loads = dict.fromkeys(members, 0)
    for layer, source in enumerate(choose_sources(layers, sizes, members, [None] * len(layers))):
        loads[source] += sizes[layer]
    assert max(loads.values()) <= sum(sizes) // ranks + max(sizes)


def fresh(layers: int, *blobs: set[int]) -> dict[int, MemberState]:
    return {rank: MemberState(frozenset(has), (False,) * layers) for rank, has in enumerate(blobs)}


@pytest.mark.parametrize(
    ("layers", "sizes", "members", "sources"),
    [
        pytest.param([0, 1, 2], [5, 9, 4], fresh(3, set(), set()), [1, 0, 1], id="largest first"),
        pytest.param([0, 1], [9, 5], fresh(2, set(), {0}), [1, 0], id="rank with the blob"),
        pytest.param([0, 1, 2], [9, 5, 4], fresh(3, set(), {0, 1, 2}), [1, 0, 0], id="but not all blobs"),
        pytest.param([0, 1, 2], [9, 3, 3], fresh(3, set(), set(), {1, 2}), [0, 2, 2], id="both blobs if not later"),
        pytest.param([0, 1, 0], [5, 4], fresh(3, set(), set()), [0, 1, 0], id="repeated layer"),
        pytest.param([0], [5], fresh(1, set(), set(), set()), [0], id="more ranks than layers"),
        pytest.param([0, 1], [0, 0], fresh(2, set()), [0, 0], id="empty blobs"),
        pytest.param([], [], fresh(0, set()), [], id="no layers"),
    ],
)
def test_choose_sources(
    layers: list[int], sizes: list[int], members: dict[int, MemberState], sources: list[int]
) -> None:
    assert choose_sources(layers, sizes, members, [None] * len(layers)) == sources


@pytest.mark.parametrize(
    ("fingerprints", "groups"),
    [
        pytest.param("aaa", {}, id="all equal"),
        pytest.param("a", {}, id="one"),
        pytest.param("aba", {"a": [0, 2], "b": [1]}, id="one differs"),
        pytest.param("bba", {"b": [0, 1], "a": [2]}, id="majority comes first"),
        pytest.param("ba", {"b": [0], "a": [1]}, id="no majority"),
    ],
)
def test_differing_groups_lists_the_largest_group_first(fingerprints: str, groups: dict[str, list[int]]) -> None:
    found = differing_groups(dict(enumerate(fingerprints)))
    assert list(found.items()) == list(groups.items())
