"""Whiteouts that tools interpret differently, and whiteouts of entries they must not delete."""

from __future__ import annotations

from tests.hostile.recipe import layer_error, recipe
from tests.support.layers import device, fifo, file, folder, hardlink, opaque, symlink, whiteout

OF_NOTHING = "a whiteout of nothing"
BELOW = "an entry below a whiteout"

RECIPES = [
    # --- of missing entries, the root, and parents
    recipe("of-an-empty-name", [file("d/x")], [file("d/.wh.")], gives=layer_error(OF_NOTHING, "'d/.wh.'")),
    recipe("of-the-directory-itself", [file("d/x")], [file("d/.wh..")], gives=layer_error(OF_NOTHING, "'d/.wh..'")),
    recipe("of-the-directory-above", [file("d/x")], [file("d/.wh...")], gives=layer_error(OF_NOTHING, "'d/.wh...'")),
    recipe("of-the-root", [file("x")], [file(".wh..")], gives=layer_error(OF_NOTHING, "'.wh..'")),
    recipe("of-what-is-above-the-root", [file("x")], [file(".wh...")], gives=layer_error(OF_NOTHING, "'.wh...'")),
    recipe(
        "of-nothing-in-a-directory-that-is-not-there",
        [file("no/such/.wh.")],
        gives=layer_error(OF_NOTHING, "'no/such/.wh.'"),
    ),
    recipe("of-four-dots", [file("..../x"), file("y")], [whiteout("....")], gives={"y": "f "}),
    recipe("of-a-marker", [file("a")], [file(".wh..wh.a")], gives={"a": "f "}),
    recipe("below-a-marker", [file("d/f")], [file(".wh.d/f")], gives=layer_error(BELOW, "'.wh.d/f'")),
    recipe("below-a-marker-upwards", [file("f")], [file(".wh.d/../f", b"2")], gives={"f": "f 2"}),
    recipe(
        "marker-below-a-marker", [file("d/f")], [file("x/.wh.d/.wh.f")], gives=layer_error(BELOW, "'x/.wh.d/.wh.f'")
    ),
    recipe("below-an-opaque-marker", [file("d/f")], [file("d/.wh..wh..opq/f")], gives=layer_error(BELOW)),
    recipe("directory-as-a-marker", [file("a"), file("b")], [folder(".wh.a")], gives={"b": "f "}),
    recipe("symlink-as-a-marker", [file("a"), file("b")], [symlink(".wh.a", "/@canary@")], gives={"b": "f "}),
    recipe("hardlink-as-a-marker", [file("a"), file("b")], [hardlink(".wh.a", "no/such")], gives={"b": "f "}),
    recipe("device-as-a-marker", [file("a"), file("b")], [device(".wh.a", 0, 0)], gives={"b": "f "}),
    recipe("fifo-as-an-opaque-marker", [file("d/a")], [fifo("d/.wh..wh..opq")], gives={"d": "d"}),
    recipe("marker-of-the-longest-name", [file("n" * 255), file("b")], [whiteout("n" * 255)], gives={"b": "f "}),
    recipe(
        "marker-of-a-name-of-256-bytes",
        [whiteout("n" * 256)],
        gives=layer_error("name is longer than 255 bytes", "nnn"),
    ),
    recipe(
        "below-a-marker-of-the-longest-name", [file(f".wh.{'n' * 255}/f", b"1")], gives=layer_error(BELOW, "nnn/f'")
    ),
    recipe("marker-with-content", [file("a"), file("b")], [file(".wh.a", b"content")], gives={"b": "f "}),
    recipe("marker-in-the-first-layer", [whiteout("a"), file("b")], gives={"b": "f "}),
    recipe("overlay-s-own-marker-is-a-device", [file("a")], [device("a", 0, 0)], gives={"a": "c 0:0"}),
    # --- its own layer
    recipe("file-then-its-whiteout", [file("a", b"1")], [file("a", b"2"), whiteout("a")], gives={"a": "f 2"}),
    recipe("whiteout-then-its-file", [file("a", b"1")], [whiteout("a"), file("a", b"2")], gives={"a": "f 2"}),
    recipe("whiteout-of-a-file-of-its-own-layer-only", [file("a", b"1"), whiteout("a")], gives={"a": "f 1"}, split={}),
    recipe(
        "directory-whiteout-and-new-children",
        [folder("d", 0o700), file("d/old")],
        [file("d/new"), whiteout("d")],
        gives={"d/new": "f "},
    ),
    recipe(
        "whiteout-of-an-ancestor-of-a-new-file",
        [file("a/b/old")],
        [file("a/b/new"), whiteout("a")],
        gives={"a/b/new": "f "},
    ),
    recipe(
        "whiteout-of-a-link-and-a-file-below",
        [symlink("d", "/@canary@")],
        [file("d/x"), whiteout("d")],
        gives={"d/x": "f "},
    ),
    recipe(
        "whiteout-of-a-file-and-a-file-below",
        [file("foo")],
        [whiteout("foo"), file("foo/bar")],
        gives={"foo/bar": "f "},
    ),
    recipe("whiteout-below-a-whiteout-of-a-file", [file("foo")], [whiteout("foo"), whiteout("foo/bar")], gives={}),
    # --- opaque
    recipe(
        "opaque-first",
        [folder("d", 0o711), file("d/old")],
        [opaque("d"), file("d/new")],
        gives={"d": "d [711]", "d/new": "f "},
    ),
    recipe(
        "opaque-last",
        [folder("d", 0o711), file("d/old")],
        [file("d/new"), opaque("d")],
        gives={"d": "d [711]", "d/new": "f "},
    ),
    recipe(
        "opaque-after-grandchildren-of-undescribed-directories",
        [file("d/old/x")],
        [file("d/new/x"), opaque("d")],
        gives={"d/new/x": "f "},
    ),
    recipe("opaque-root", [file("a"), folder("b")], [opaque(""), file("c")], gives={"c": "f "}),
    recipe(
        "opaque-and-whiteout-in-one-directory",
        [file("d/a"), file("d/b")],
        [opaque("d"), whiteout("d/a"), file("d/c")],
        gives={"d/c": "f "},
    ),
    recipe("opaque-of-a-file", [file("d", b"1")], [opaque("d")], gives={"d": "f 1"}),
    recipe(
        "opaque-over-three-layers",
        [file("d/1")],
        [opaque("d"), file("d/2")],
        [file("d/3")],
        gives={"d/2": "f ", "d/3": "f "},
    ),
    recipe("opaque-with-a-longer-name", [file("d/a")], [file("d/.wh..wh..opqX")], gives={"d/a": "f "}),
    recipe(
        "opaque-by-its-attribute",
        [file("d/a")],
        [folder("d", xattrs=((b"trusted.overlay.opaque", b"y"),))],
        gives={"d/a": "f "},
    ),
    # --- in missing directories or non-directories
    recipe("marker-in-no-directory", [file("a")], [whiteout("no/such/file")], gives={"a": "f "}),
    recipe("opaque-in-no-directory", [file("a")], [opaque("no/such")], gives={"a": "f "}),
    recipe("marker-below-a-file", [file("a", b"1")], [whiteout("a/b")], gives={"a": "f 1"}),
    recipe(
        "markers-through-links",
        [file("usr/lib/x"), file("usr/lib/y"), symlink("lib", "usr/lib")],
        [whiteout("lib/x")],
        gives={"usr/lib/y": "f ", "lib": "l usr/lib"},
    ),
    recipe(
        "marker-of-the-link-and-below-it",
        [file("usr/lib/x"), symlink("lib", "usr/lib")],
        [whiteout("lib"), whiteout("lib/x")],
        gives={"usr/lib/x": "f "},
    ),
    recipe(
        "opaque-directory-in-place-of-a-link",
        [file("run/keep", b"1"), symlink("var/run", "/run")],
        [folder("var/run"), opaque("var/run")],
        gives={"run/keep": "f 1", "var/run": "d"},
    ),
    recipe(
        "whiteout-before-the-directory-in-place-of-a-link",
        [file("run/keep", b"1"), symlink("var/run", "/run")],
        [whiteout("var/run/keep"), folder("var/run")],
        gives={"run/keep": "f 1", "var/run": "d"},
    ),
    recipe(
        "opaque-in-an-implied-directory-in-place-of-a-link",
        [file("run/keep", b"1"), symlink("var/run", "/run")],
        [opaque("var/run"), file("var/run/x", b"2"), whiteout("var/run")],
        gives={"run/keep": "f 1", "var/run/x": "f 2"},
    ),
    recipe(
        "opaque-behind-a-link-of-its-own-layer",
        [file("run/gone", b"1")],
        [opaque("l"), file("run/x", b"2"), symlink("l", "run"), file("l/y", b"3")],
        gives={"run/x": "f 2", "run/y": "f 3", "l": "l run"},
    ),
    recipe(
        "marker-in-a-circle-of-links",
        [symlink("a", "b"), symlink("b", "a")],
        [whiteout("a/x")],
        gives={"a": "l b", "b": "l a"},
    ),
    # --- hard links
    recipe("one-of-two-names", [file("a", b"1"), hardlink("b", "a")], [whiteout("a")], gives={"b": "f 1"}),
    recipe(
        "name-of-a-linked-file-anew",
        [file("a", b"1"), hardlink("b", "a")],
        [file("a", b"2")],
        gives={"a": "f 2", "b": "f 1"},
    ),
    recipe("hardlink-across-a-whiteout", [file("a", b"1")], [hardlink("b", "a")], [whiteout("a")], gives={"b": "f 1"}),
    # --- AUFS metadata
    recipe(
        "aufs-pseudo-links",
        [
            file(".wh..wh.plnk/1.2", b"1"),
            hardlink("a", ".wh..wh.plnk/1.2"),
            file(".wh..wh.aufs"),
            folder(".wh..wh.orph"),
        ],
        gives={"a": "f 1"},
    ),
    recipe("aufs-below-the-root", [file("d/.wh..wh.plnk/1.2")], gives=layer_error(BELOW)),
    recipe(
        "aufs-link-to-nothing",
        [folder(".wh..wh.plnk"), hardlink("a", ".wh..wh.plnk/1.2")],
        gives=layer_error("a hard link to nothing", "'a'"),
    ),
]
