"""The merge, rule by rule, and against a slow model of the same rules."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.errors import FastpullError, LayerError, LimitExceeded
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from fastpull.layers.tree import DirectoryNode, Tree, entry_of, layer_of
from tests.support.layers import Member, device, fifo, file, folder, hardlink, index, opaque, symlink, whiteout
from tests.support.link_stacks import random_stack
from tests.support.merge_model import ModelRefused, merge_model


def tree_of(*layers: list[Member]) -> Tree:
    return merge([index(*layer) for layer in layers])


def shape(tree: Tree) -> dict[str, str]:
    """For each path its type, and for what is no directory the layer and entry that it is of."""
    found = {}
    for path, node in tree.walk():
        if isinstance(node, DirectoryNode):
            where = "" if node.origin is None else f" {layer_of(node.origin)}.{entry_of(node.origin)}"
            found[path.decode()] = f"dir{where}"
        else:
            found[path.decode()] = f"{tree.type(node).name.lower()} {layer_of(node)}.{entry_of(node)}"
    found.pop("")
    return found


def refused(*layers: list[Member], error: type[FastpullError] = LayerError) -> str:
    with pytest.raises(error) as caught:
        tree_of(*layers)
    assert caught.value.exit_code == error.exit_code
    return str(caught.value)


# --- plain layers


def test_layers_add_up() -> None:
    assert shape(tree_of([folder("d"), file("d/a")], [file("d/b")])) == {
        "d": "dir 0.0",
        "d/a": "file 0.1",
        "d/b": "file 1.0",
    }


def test_a_file_is_replaced() -> None:
    assert shape(tree_of([file("a")], [file("a")])) == {"a": "file 1.0"}


def test_a_described_directory_takes_new_attributes_and_keeps_its_children() -> None:
    assert shape(tree_of([folder("d"), file("d/a")], [folder("d", 0o700)])) == {"d": "dir 1.0", "d/a": "file 0.1"}


def test_indexes_from_the_cache_merge_as_those_from_a_scan() -> None:
    layers = [[file("a"), file("d/b"), symlink("l", "d")], [whiteout("a"), opaque("d"), file("l/c")]]
    kept = [LayerIndex.from_bytes(index(*layer).to_bytes()) for layer in layers]
    assert shape(merge(kept)) == shape(tree_of(*layers)) == {"d": "dir", "d/c": "file 1.2", "l": "symlink 0.2"}


def test_no_layers_are_an_empty_root() -> None:
    tree = merge([])
    assert shape(tree) == {}
    assert tree.entry(tree.root).mode == 0o755


def test_the_root_takes_the_attributes_of_its_entry() -> None:
    tree = tree_of([folder("", 0o700)], [folder("", 0o711, uid=5)])
    assert (tree.entry(tree.root).mode, tree.entry(tree.root).uid) == (0o711, 5)


def test_undescribed_directories_have_the_defaults() -> None:
    tree = tree_of([file("a/b/c", uid=7)])
    node = tree.root.children[b"a"]
    entry = tree.entry(node)
    assert (entry.mode, entry.uid, entry.gid, entry.mtime, entry.xattrs) == (0o755, 0, 0, 0, ())


def test_walk_sorts_names_by_bytes() -> None:
    tree = tree_of([file(b"b"), file(b"a\xff"), file(b"a"), file(b"a/b".replace(b"/", b"-")), file(b"B")])
    assert [path for path, _ in tree.walk()] == [b"", b"B", b"a", b"a-b", b"a\xff", b"b"]


# --- whiteouts


def test_a_whiteout_removes_from_lower_layers() -> None:
    assert shape(tree_of([file("a"), file("b")], [whiteout("a")])) == {"b": "file 0.1"}


def test_a_whiteout_removes_whole_directories() -> None:
    assert shape(tree_of([file("d/e/f"), file("d2")], [whiteout("d")])) == {"d2": "file 0.1"}


@pytest.mark.parametrize("late", [False, True], ids=["marker-first", "marker-last"])
def test_a_whiteout_never_hides_its_own_layer(late: bool) -> None:
    members = [whiteout("a"), file("a")]
    assert shape(tree_of([file("a")], members[::-1] if late else members)) == {"a": f"file 1.{0 if late else 1}"}


@pytest.mark.parametrize("late", [False, True], ids=["marker-first", "marker-last"])
def test_an_opaque_directory_hides_what_is_below_and_keeps_its_own(late: bool) -> None:
    members = [opaque("d"), file("d/new/x")]
    found = shape(tree_of([folder("d", 0o711), file("d/old")], members[::-1] if late else members))
    assert found == {"d": "dir 0.0", "d/new": "dir", "d/new/x": f"file 1.{0 if late else 1}"}


def test_an_opaque_root_hides_everything() -> None:
    assert shape(tree_of([file("a"), file("d/b")], [opaque(""), file("c")])) == {"c": "file 1.1"}


@pytest.mark.parametrize("late", [False, True], ids=["marker-first", "marker-last"])
def test_a_whiteout_and_new_children_make_a_new_directory(late: bool) -> None:
    members = [whiteout("d"), file("d/f")]
    found = tree_of([folder("d", 0o700, uid=5), file("d/old")], members[::-1] if late else members)
    assert set(shape(found)) == {"d", "d/f"}
    assert found.entry(found.root.children[b"d"]).mode == 0o755


def test_whiteouts_in_missing_directory_do_nothing() -> None:
    assert shape(tree_of([file("a")], [whiteout("no/such"), opaque("nor/this")])) == {"a": "file 0.0"}


def test_whiteouts_follow_lower_links_inside_the_root() -> None:
    lower = [file("usr/lib/x"), file("usr/lib/y"), symlink("lib", "usr/lib"), symlink("up", "../../../usr")]
    assert set(shape(tree_of(lower, [whiteout("lib/x")]))) == {"usr", "usr/lib", "usr/lib/y", "lib", "up"}
    assert set(shape(tree_of(lower, [opaque("up/lib")]))) == {"usr", "usr/lib", "lib", "up"}


def test_whiteout_of_a_link_hides_nothing_behind_it() -> None:
    lower = [file("usr/lib/x"), symlink("lib", "usr/lib")]
    one, other = [whiteout("lib"), whiteout("lib/x")], [whiteout("lib/x"), whiteout("lib")]
    assert set(shape(tree_of(lower, one))) == set(shape(tree_of(lower, other))) == {"usr", "usr/lib", "usr/lib/x"}


REPLACEMENTS = {
    "directory": [folder("var/run")],
    "directory-with-children": [folder("var/run"), file("var/run/new")],
    "whiteout-and-implied-directory": [whiteout("var/run"), file("var/run/new")],
    "opaque-parent-and-implied-directory": [opaque("var"), file("var/run/new")],
    "whiteout-alone": [whiteout("var/run")],
    "file": [file("var/run")],
    "link-elsewhere": [symlink("var/run", "/tmp")],
}


@pytest.mark.parametrize("marker", [opaque("var/run"), whiteout("var/run/keep"), whiteout("var/run/sub/keep")])
@pytest.mark.parametrize("replacement", REPLACEMENTS.values(), ids=REPLACEMENTS)
@pytest.mark.parametrize("late", [False, True], ids=["marker-first", "marker-last"])
def test_whiteouts_hide_nothing_behind_a_replaced_link(replacement: list[Member], marker: Member, late: bool) -> None:
    lower = [folder("tmp"), file("run/keep"), file("run/sub/keep"), symlink("var/run", "/run")]
    layer = [*replacement, marker] if late else [marker, *replacement]
    found = shape(tree_of(lower, layer))
    assert {"run/keep", "run/sub/keep"} <= set(found)
    assert "var/run/keep" not in found


@pytest.mark.parametrize("late", [False, True], ids=["marker-first", "marker-last"])
def test_whiteouts_follow_links_of_their_own_layer(late: bool) -> None:
    members = [symlink("lib", "usr/lib"), whiteout("lib/x")]
    found = shape(tree_of([file("usr/lib/x"), file("usr/lib/y")], members[::-1] if late else members))
    assert set(found) == {"usr", "usr/lib", "usr/lib/y", "lib"}


def test_whiteouts_behind_a_link_do_not_hide_their_own_layer() -> None:
    layer = [opaque("lib"), file("lib/x"), whiteout("lib/x"), symlink("lib2", "lib"), file("lib2/y"), opaque("lib2")]
    found = shape(tree_of([file("usr/lib/x"), file("usr/lib/old"), symlink("lib", "usr/lib")], layer))
    assert set(found) == {"usr", "usr/lib", "usr/lib/x", "usr/lib/y", "lib", "lib2"}


def test_resolving_whiteouts_does_not_change_the_tree() -> None:
    lower = [file("run/keep"), folder("run/sub", 0o711), symlink("var/run", "/run")]
    layer = [file("f"), whiteout("var/run/keep"), hardlink("run/sub/h", "f"), folder("run", 0o700)]
    tree = tree_of(lower, layer)
    assert shape(tree) == {
        "f": "file 1.0",
        "run": "dir 1.3",
        "run/sub": "dir 0.1",
        "run/sub/h": "file 1.0",
        "var": "dir",
        "var/run": "symlink 0.2",
    }
    assert tree.repeated_count == 0


def test_name_with_prefix_of_opaque_marker_is_no_marker() -> None:
    assert shape(tree_of([file("d/a")], [file("d/.wh..wh..opqX")])) == {"d": "dir", "d/a": "file 0.0"}


def test_internal_entries_of_aufs_are_skipped() -> None:
    layer = [
        folder(".wh..wh.orph"),
        file(".wh..wh.aufs"),
        folder(".wh..wh.plnk"),
        file(".wh..wh.plnk/12.34", b"x"),
        file("a"),
    ]
    assert shape(tree_of(layer)) == {"a": "file 0.4"}


def test_hard_links_may_refer_to_internal_entries_of_aufs() -> None:
    layer = [file(".wh..wh.plnk/12.34", b"x"), hardlink("a", ".wh..wh.plnk/12.34"), hardlink("b", "a")]
    assert shape(tree_of(layer)) == {"a": "file 0.0", "b": "file 0.0"}


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "d/.wh.", "no/such/.wh.."])
def test_whiteout_without_name_is_refused(name: str) -> None:
    assert "whiteout of nothing" in refused([file("d/x")], [file(name)])


def test_an_entry_below_a_whiteout_is_refused() -> None:
    assert "below a whiteout: '.wh.d/f'" in refused([file(".wh.d/f")])


# --- changes of type


def test_file_replaces_directory_and_its_children() -> None:
    assert shape(tree_of([file("d/a/b")], [file("d")])) == {"d": "file 1.0"}


def test_a_directory_replaces_a_file() -> None:
    assert shape(tree_of([file("d")], [folder("d")])) == {"d": "dir 1.0"}


def test_a_child_below_a_lower_file_replaces_it_by_a_directory() -> None:
    assert shape(tree_of([file("d")], [file("d/a")])) == {"d": "dir", "d/a": "file 1.0"}


def test_a_child_below_a_file_of_its_own_layer_is_refused() -> None:
    assert "its own layer: 'd'" in refused([file("d"), file("d/a")])
    assert "its own layer" in refused([fifo("d"), folder("d/a/b")])


def test_a_directory_replaces_a_link_to_a_directory() -> None:
    found = shape(tree_of([folder("usr"), symlink("lib", "usr")], [folder("lib"), file("lib/x")]))
    assert found == {"usr": "dir 0.0", "lib": "dir 1.0", "lib/x": "file 1.1"}


def test_link_replaces_directory_and_its_children() -> None:
    assert shape(tree_of([file("lib/x")], [symlink("lib", "usr")])) == {"lib": "symlink 1.0"}


# --- parents that are links


def test_entry_below_lower_link_goes_to_its_target() -> None:
    lower = [folder("usr/lib", 0o700), symlink("lib", "/usr/lib")]
    found = shape(tree_of(lower, [file("lib/x")]))
    assert found == {"usr": "dir", "usr/lib": "dir 0.0", "lib": "symlink 0.1", "usr/lib/x": "file 1.0"}


@pytest.mark.parametrize("target", ["../../../../etc", "/etc", "/../etc", "x/../../etc"])
def test_lower_link_never_leads_outside_the_root(target: str) -> None:
    found = shape(tree_of([folder("x"), symlink("a", target)], [file("a/passwd")]))
    assert "etc/passwd" in found
    assert all(not path.startswith("..") for path in found)


def test_target_of_dangling_lower_link_is_created() -> None:
    assert set(shape(tree_of([symlink("run", "../var/run")], [file("run/x")]))) == {
        "run",
        "var",
        "var/run",
        "var/run/x",
    }


def test_file_behind_lower_link_is_replaced_by_directory() -> None:
    assert set(shape(tree_of([file("f"), symlink("l", "f")], [file("l/x")]))) == {"f", "f/x", "l"}


def test_a_loop_of_links_is_refused() -> None:
    assert "too many symbolic links" in refused([symlink("a", "b"), symlink("b", "a")], [file("a/x")])


def test_links_do_not_exceed_maximum_depth() -> None:
    deepest = "x/" * 254
    assert deepest + "f" in shape(tree_of([symlink("l", deepest)], [file("l/f")]))
    assert "255 components" in refused([symlink("l", "x/" * 255)], [file("l/f")], error=LimitExceeded)
    assert "255 components" in refused([symlink("l", "x/" * 200_000)], [file("l/f")], error=LimitExceeded)
    assert "255 components" in refused(
        [folder("x/" * 250), symlink("l", "x/" * 250)], [file("l/a/b/c/d/e/f")], error=LimitExceeded
    )


def test_entry_below_link_of_own_layer_goes_to_its_target() -> None:
    found = shape(tree_of([folder("usr/lib"), symlink("lib", "usr/lib"), file("lib/x")]))
    assert found == {"usr": "dir", "usr/lib": "dir 0.0", "lib": "symlink 0.1", "usr/lib/x": "file 0.2"}


def test_links_of_the_own_layer_are_followed_in_the_order_of_the_tar() -> None:
    layer = [symlink("l", "one"), file("l/a"), symlink("l", "two"), file("l/b")]
    assert set(shape(tree_of(layer))) == {"one", "one/a", "l", "two", "two/b"}
    assert set(shape(tree_of([file("l/a"), symlink("l", "one"), file("l/b")]))) == {"l", "one", "one/b"}


@pytest.mark.parametrize("target", ["../../../../etc", "/etc", "/../etc", "x/../../etc", "nope/../etc", "/./etc/."])
def test_link_of_own_layer_never_leads_outside_the_root(target: str) -> None:
    assert set(shape(tree_of([folder("x"), symlink("a", target), file("a/passwd")]))) == {"x", "a", "etc", "etc/passwd"}


def test_name_removed_by_dot_dot_is_looked_up_for_each_entry() -> None:
    found = shape(tree_of([symlink("l", "up/../d"), file("l/a"), symlink("up", "x/y"), file("l/b")]))
    assert set(found) == {"l", "d", "d/a", "up", "x", "x/d", "x/d/b"}


def test_links_of_own_layer_have_the_same_limits() -> None:
    chain = [symlink(f"l{number}", f"l{number + 1}") for number in range(40)]
    assert "l40/x" in shape(tree_of([*chain, file("l0/x")]))
    assert "too many symbolic links" in refused([*chain, symlink("l40", "d"), file("l0/x")])
    assert "too many symbolic links" in refused([symlink("a", "b"), symlink("b", "a"), file("a/x")])
    assert "255 components" in refused([symlink("l", "x/" * 255), file("l/f")], error=LimitExceeded)


@pytest.mark.parametrize("obstacle", [file("f"), fifo("f"), device("f", 1, 3)])
def test_a_child_below_a_link_to_a_non_directory_of_its_own_layer_is_refused(obstacle: Member) -> None:
    assert "its own layer: 'l'" in refused([obstacle, symlink("l", "f"), file("l/x")])


def test_replaced_link_is_not_followed() -> None:
    lower = [folder("one"), folder("two"), symlink("l", "one")]
    found = shape(tree_of(lower, [file("l/a"), symlink("l", "two")], [file("l/b")]))
    assert {"one/a", "two/b"} <= set(found)


def test_replaced_parent_is_looked_up_again() -> None:
    lower = [folder("one"), symlink("l", "one")]
    found = shape(tree_of(lower, [file("l/a"), folder("l"), file("l/b")]))
    assert set(found) == {"one", "one/a", "l", "l/b"}


# --- hard links


def test_a_hard_link_shares_the_inode_of_its_target() -> None:
    assert shape(tree_of([file("a"), hardlink("b", "a"), hardlink("c", "b")])) == dict.fromkeys("abc", "file 0.0")


def test_a_hard_link_may_reach_into_a_lower_layer() -> None:
    assert shape(tree_of([file("a")], [hardlink("b", "a")])) == dict.fromkeys("ab", "file 0.0")


def test_hard_link_keeps_inode_of_removed_target() -> None:
    for layer in ([whiteout("a")], [file("a")], [folder("a")]):
        assert shape(tree_of([file("a"), hardlink("b", "a")], layer))["b"] == "file 0.0"


def test_hard_link_keeps_inode_of_redeclared_target() -> None:
    found = shape(tree_of([file("a"), hardlink("b", "a"), file("a")]))
    assert found == {"a": "file 0.2", "b": "file 0.0"}


def test_hard_link_to_symbolic_link_is_that_link() -> None:
    found = shape(tree_of([symlink("s", "nowhere"), hardlink("h", "s")]))
    assert found == {"s": "symlink 0.0", "h": "symlink 0.0"}


def test_hard_link_follows_links_in_parents_of_target_only() -> None:
    found = shape(tree_of([file("d/x"), symlink("l", "d"), symlink("d/s", "x"), hardlink("h", "l/s")]))
    assert found["h"] == "symlink 0.2"


def test_a_hard_link_to_itself_changes_nothing() -> None:
    assert shape(tree_of([file("a")], [hardlink("a", "a")])) == {"a": "file 0.0"}


def test_hard_link_may_replace_directory_of_its_target() -> None:
    assert shape(tree_of([file("d/f")], [hardlink("d", "d/f")])) == {"d": "file 0.0"}


@pytest.mark.parametrize("target", ["nothing", "d/nothing", "f/below"])
def test_hard_link_without_target_is_refused(target: str) -> None:
    assert f"hard link to nothing ({target})" in refused([folder("d"), file("f"), hardlink("h", target)])


def test_hard_link_to_entry_hidden_by_its_layer_is_refused() -> None:
    assert "hard link to nothing" in refused([file("a")], [hardlink("b", "a"), whiteout("a")])


@pytest.mark.parametrize("target", ["d", ""])
def test_a_hard_link_to_a_directory_is_refused(target: str) -> None:
    assert "hard link to a directory" in refused([folder("d"), hardlink("h", target)])


# --- the rest


def test_root_must_be_a_directory() -> None:
    for member in (file(""), symlink("", "/etc"), hardlink("", "a")):
        assert "root has to be a directory" in refused([file("a"), member])


def test_last_entry_of_repeated_path_applies_and_is_counted() -> None:
    tree = tree_of([file("a"), file("a"), folder("d"), folder("d")], [file("a"), folder("d")])
    assert shape(tree) == {"a": "file 1.0", "d": "dir 1.1"}
    assert (tree.repeated_count, tree.repeated) == (2, [b"a", b"d"])


def test_wanted_are_the_entries_that_the_tree_has() -> None:
    tree = tree_of([folder("d"), file("a"), file("b"), hardlink("c", "a")], [file("b"), whiteout("a")])
    assert [list(layer) for layer in tree.wanted()] == [[1, 1, 0, 0], [1, 0]]


# --- the model

NAMES = [b"a", b"b", b"c"]
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
targets = st.one_of(
    paths,
    paths.map(lambda path: b"/" + path),
    paths.map(lambda path: b"../" + path),
    st.sampled_from([b"..", b"/", b".", b"a/../b"]),
)


def marked(path: bytes, kind: str) -> bytes:
    parent, slash, name = path.rpartition(b"/")
    special = {"opaque": b".wh..wh..opq", "aufs": b".wh..wh.x"}
    return parent + slash + special.get(kind, b".wh." + name)


entry = st.one_of(
    st.builds(Entry, paths, st.sampled_from([EntryType.FILE, EntryType.FILE, EntryType.FIFO])),
    st.builds(Entry, paths, st.just(EntryType.DIRECTORY)),
    st.builds(lambda path, target: Entry(path, EntryType.SYMLINK, linkname=target), paths, targets),
    st.builds(lambda path, target: Entry(path, EntryType.HARDLINK, linkname=target), paths, paths),
    st.builds(
        lambda path, kind: Entry(marked(path, kind), EntryType.FILE),
        paths,
        st.sampled_from(["white", "white", "opaque", "aufs"]),
    ),
    st.just(Entry(b"", EntryType.DIRECTORY)),
)
rare = st.sampled_from(
    [
        Entry(b".wh..wh.plnk/1.2", EntryType.FILE),
        Entry(b"a", EntryType.HARDLINK, linkname=b".wh..wh.plnk/1.2"),
        Entry(b".wh.", EntryType.FILE),
        Entry(b".wh.a/b", EntryType.FILE),
        Entry(b"", EntryType.FILE),
    ]
)
stacks = st.lists(st.lists(st.one_of(*[entry] * 12, rare), max_size=7), max_size=4)


def outcome(layers: list[list[Entry]]) -> tuple[Any, Any]:
    """What the real merge and the model make of layers; None for a refusal."""
    try:
        tree = merge([LayerIndex.of(layer) for layer in layers])
        real = {
            tuple(path.split(b"/")) if path else (): ("dir", node.origin)
            if isinstance(node, DirectoryNode)
            else ("leaf", node)
            for path, node in tree.walk()
        }
    except LayerError:
        real = None
    try:
        model = merge_model(layers)
    except ModelRefused:
        model = None
    return real, model


@pytest.mark.slow
@settings(deadline=None, max_examples=int(os.environ.get("FASTPULL_TESTS_STACKS") or 1500))
@given(stacks)
def test_any_stack_of_layers_equals_the_model(layers: list[list[Entry]]) -> None:
    real, model = outcome(layers)
    assert real == model


@pytest.mark.slow
def test_random_stacks_of_links_and_whiteouts_equal_the_model() -> None:
    taken = hidden = 0
    for seed in range(3000):
        stack = random_stack(random.Random(seed), ["a", "b", "c"], markers=0.3)
        layers = [[entry for entry, _ in layer] for layer in stack]
        real, model = outcome(layers)
        assert real == model, layers
        plain = [[entry for entry in layer if b".wh." not in entry.path] for layer in layers]
        taken += real is not None
        hidden += real is not None and outcome(plain)[1] is not None and len(real) < len(outcome(plain)[1])
    assert taken > hidden > 100  # about half are taken, and markers act in a quarter of those


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(stacks, st.randoms())
def test_position_of_whiteouts_in_their_layer_does_not_matter(layers: list[list[Entry]], source: Any) -> None:
    assert contents(layers) == contents(with_markers_elsewhere(layers, source))


def test_position_of_whiteouts_does_not_matter_among_links() -> None:
    for seed in range(500):
        source = random.Random(seed)
        layers = [[entry for entry, _ in layer] for layer in random_stack(source, ["a", "b", "c"], markers=0.3)]
        assert contents(layers) == contents(with_markers_elsewhere(layers, source)), layers


def contents(stack: list[list[Entry]]) -> Any:
    """What is at each path, whatever the number of its entry; None for a refusal."""
    real, _ = outcome(stack)
    if real is None:
        return None
    return {
        path: (kind, origin if origin is None else stack[layer_of(origin)][entry_of(origin)])
        for path, (kind, origin) in real.items()
    }


def with_markers_elsewhere(layers: list[list[Entry]], source: Any) -> list[list[Entry]]:
    """The layers with each marker at a random place among the entries of its layer."""
    shuffled = []
    for layer in layers:
        others = [one for one in layer if b".wh." not in one.path]
        for marker in (one for one in layer if b".wh." in one.path):
            others.insert(source.randint(0, len(others)), marker)
        shuffled.append(others)
    return shuffled
