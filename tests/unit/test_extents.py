from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fastpull.cache.partial.extents import Extents

SIZE = 60
ranges = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=15)


@given(ranges)
def test_extents_are_the_set_of_their_bytes(added: list[tuple[int, int]]) -> None:
    extents, model = Extents(), set[int]()
    for start, stop in added:
        extents.add(start, stop)
        model.update(range(start, stop))
    assert {at for start, stop in extents for at in range(start, stop)} == model
    assert extents.total == len(model)
    assert {at for start, stop in extents.gaps(SIZE) for at in range(start, stop)} == set(range(SIZE)) - model
    prefix = extents.prefix()
    assert set(range(prefix)) <= model
    assert prefix not in model
    pairs = list(extents)
    assert all(one[1] < other[0] for one, other in pairwise(pairs)), "touching ranges are one"


def test_gaps_end_at_the_size() -> None:
    extents = Extents()
    extents.add(0, 10)
    extents.add(30, 40)
    assert list(extents.gaps(20)) == [(10, 20)]
    assert list(extents.gaps(10)) == []
    assert list(extents.gaps(50)) == [(10, 30), (40, 50)]
