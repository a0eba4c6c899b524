"""The walk of a path's components, with symbolic links replaced by their targets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.layers.path_walk import MAX_SYMLINKS, PathWalk, TooManySymlinks

NAMES = st.sampled_from([b"", b".", b"..", b"a", b"b", b"\xff"])


@given(st.lists(NAMES))
def test_walk_yields_all_names_but_empty_ones_and_dots(names: list[bytes]) -> None:
    assert list(PathWalk(b"/".join(names))) == [name for name in names if name not in (b"", b".")]


@given(st.lists(NAMES), st.lists(NAMES, max_size=3), st.booleans())
def test_target_of_symlink_comes_before_the_rest(rest: list[bytes], target: list[bytes], is_absolute: bool) -> None:
    walk = PathWalk(b"/".join([b"link", *rest]))
    assert next(iter(walk)) == b"link"
    text = (b"/" if is_absolute else b"x/") + b"/".join(target)
    assert walk.follow(text) == is_absolute
    expected = [name for name in text.split(b"/") + rest if name not in (b"", b".")]
    assert list(walk) == expected
    assert walk.is_last


def test_more_symlinks_than_the_kernel_follows_are_refused() -> None:
    walk = PathWalk(b"link")
    for _ in range(MAX_SYMLINKS):
        assert list(walk) == [b"link"]
        walk.follow(b"link")
    with pytest.raises(TooManySymlinks):
        walk.follow(b"link")
