"""Strategies for what ranks have of an image."""

from __future__ import annotations

from hypothesis import strategies as st

from fastpull.cluster.blobs.plan import Holding


@st.composite
def holdings(draw: st.DrawFn) -> dict[int, Holding]:
    """Return holdings of up to six ranks, with up to ten chunks."""
    ranks, count = draw(st.integers(1, 6)), draw(st.integers(0, 10))
    has = st.lists(st.booleans(), min_size=count, max_size=count).map(tuple)
    wants = st.frozensets(st.integers(0, max(0, count - 1)))
    return {rank: Holding(draw(has), draw(wants)) for rank in range(ranks)}
