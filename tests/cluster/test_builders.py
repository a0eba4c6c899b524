"""Who makes what: every layer has one source, and nobody has much more to do than the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cluster.build.builders import MemberState, choose_sources, lacking, odd_ones


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[int], dict[int, MemberState], list[int | None]]:
    sizes = draw(st.lists(st.integers(0, 100), min_size=1, max_size=8))
    layers = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=12))
    ranks = draw(st.sets(st.integers(0, 9), min_size=1, max_size=6))
    blobs = st.frozensets(st.integers(0, len(sizes) - 1))
    products = st.lists(st.booleans(), min_size=len(layers), max_size=len(layers)).map(tuple)
    makers = {rank: MemberState(draw(blobs), draw(products)) for rank in ranks}
    before = draw(st.lists(st.none() | st.integers(0, 9), min_size=len(layers), max_size=len(layers)))
    return layers, sizes, makers, before


@given(cases())
def test_every_layer_has_a_source_that_takes_part(
    case: tuple[list[int], list[int], dict[int, MemberState], list[int | None]],
) -> None:
    layers, _, makers, before = case
    sources = choose_sources(*case)
    assert len(sources) == len(layers)
    assert set(sources) <= makers.keys()
    for layer, source in enumerate(sources):
        holders = [rank for rank in makers if makers[rank].products[layer]]
        assert not holders or source in holders, "nothing is made twice"
        if not holders and before[layer] in makers:
            assert source == before[layer], "who has begun goes on"
        assert source not in lacking(makers, layer, source)
        assert {source, *lacking(makers, layer, source), *holders} == makers.keys()


@given(cases())
def test_the_ranks_say_the_same_in_any_order(
    case: tuple[list[int], list[int], dict[int, MemberState], list[int | None]],
) -> None:
    layers, sizes, makers, before = case
    assert choose_sources(layers, sizes, dict(reversed(makers.items())), before) == choose_sources(*case)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(1, 6), st.data())
def test_the_work_is_divided_about_evenly_also_where_some_have_blobs(
    sizes: list[int], ranks: int, data: st.DataObject
) -> None:
    blobs = st.frozensets(st.integers(0, len(sizes) - 1))
    layers = list(range(len(sizes)))
    makers = {rank: MemberState(data.draw(blobs), (False,) * len(layers)) for rank in range(ranks)}
    loads = dict.fromkeys(makers, 0)
    for layer, source in enumerate(choose_sources(layers, sizes, makers, [None] * len(layers))):
        loads[source] += sizes[layer]
    assert max(loads.values()) <= sum(sizes) // ranks + max(sizes)


def fresh(layers: int, *blobs: set[int]) -> dict[int, MemberState]:
    return {rank: MemberState(frozenset(has), (False,) * layers) for rank, has in enumerate(blobs)}


@pytest.mark.parametrize(
    ("layers", "sizes", "makers", "sources"),
    [
        pytest.param([0, 1, 2], [5, 9, 4], fresh(3, set(), set()), [1, 0, 1], id="the largest first"),
        pytest.param([0, 1], [9, 5], fresh(2, set(), {0}), [1, 0], id="who has the blob"),
        pytest.param([0, 1, 2], [9, 5, 4], fresh(3, set(), {0, 1, 2}), [1, 0, 0], id="but not all of them"),
        pytest.param([0, 1, 2], [9, 3, 3], fresh(3, set(), set(), {1, 2}), [0, 2, 2], id="as soon, so both"),
        pytest.param([0, 1, 0], [5, 4], fresh(3, set(), set()), [0, 1, 0], id="a layer twice"),
        pytest.param([0], [5], fresh(1, set(), set(), set()), [0], id="more ranks than layers"),
        pytest.param([0, 1], [0, 0], fresh(2, set()), [0, 0], id="nothing in them"),
        pytest.param([], [], fresh(0, set()), [], id="no layers"),
    ],
)
def test_examples(layers: list[int], sizes: list[int], makers: dict[int, MemberState], sources: list[int]) -> None:
    assert choose_sources(layers, sizes, makers, [None] * len(layers)) == sources


@pytest.mark.parametrize(
    ("fingerprints", "groups"),
    [
        pytest.param("aaa", {}, id="all alike"),
        pytest.param("a", {}, id="one"),
        pytest.param("aba", {"a": [0, 2], "b": [1]}, id="one differs"),
        pytest.param("bba", {"b": [0, 1], "a": [2]}, id="most come first"),
        pytest.param("ba", {"b": [0], "a": [1]}, id="nobody is right"),
    ],
)
def test_files_that_differ_are_told_with_their_ranks(fingerprints: str, groups: dict[str, list[int]]) -> None:
    found = odd_ones(dict(enumerate(fingerprints)))
    assert list(found.items()) == list(groups.items())
