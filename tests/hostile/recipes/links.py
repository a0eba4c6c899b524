"""Symbolic and hard links through which a later entry or layer would act outside the root."""

from __future__ import annotations

from fastpull.layers.archive import padded
from tests.hostile.recipe import CANARY, below_own, escapes, layer_error, recipe, tar_error
from tests.support.headers import block, pax
from tests.support.layers import Member, device, fifo, file, folder, hardlink, opaque, symlink, whiteout

OUT = b"/" + CANARY
UP = b"../" * 30 + CANARY
TO_OUT, TO_UP = "l /@canary@", f"l {'../' * 30}@canary@"
NOTHING = "a hard link to nothing"

STEP = "d" * 247
STEPS = "/".join([STEP] * 16)
LONG_WAY = "/".join(["a"] * 16)


def chain_of(length: int) -> list[Member]:
    """Return a chain of links that ends at the directory ``end``."""
    return [symlink(f"l{n}", f"l{n + 1}" if n + 1 < length else "end") for n in range(length)]


RECIPES = [
    # --- through a symbolic link
    recipe(
        "write-through-an-absolute-link",
        [symlink("d", OUT), file("d/x", b"evil")],
        gives={"d": TO_OUT, b"@canary@/x": "f evil"},
        split={"d": TO_OUT, b"@canary@/x": "f evil"},
    ),
    recipe(
        "write-through-a-relative-link",
        [symlink("d", UP), file("d/x", b"evil")],
        gives={"d": TO_UP, b"@canary@/x": "f evil"},
        split={"d": TO_UP, b"@canary@/x": "f evil"},
    ),
    recipe(
        "overwrite-through-a-link",
        [symlink("d", OUT), file("d/file", b"evil")],
        gives={"d": TO_OUT, b"@canary@/file": "f evil"},
        split={"d": TO_OUT, b"@canary@/file": "f evil"},
    ),
    recipe(
        "chmod-through-a-link",
        [symlink("d", OUT), folder("d/folder", 0o777)],
        gives={"d": TO_OUT, b"@canary@/folder": "d [777]"},
        split={"d": TO_OUT, b"@canary@/folder": "d [777]"},
    ),
    recipe(
        "link-through-a-link",
        [symlink("d", OUT), symlink("d/l", "/etc")],
        gives={"d": TO_OUT, b"@canary@/l": "l /etc"},
        split={"d": TO_OUT, b"@canary@/l": "l /etc"},
    ),
    recipe(
        "fifo-through-a-link",
        [symlink("d", OUT), fifo("d/p")],
        gives={"d": TO_OUT, b"@canary@/p": "p"},
        split={"d": TO_OUT, b"@canary@/p": "p"},
    ),
    recipe(
        "device-through-a-link",
        [symlink("d", OUT), device("d/n", 1, 3)],
        gives={"d": TO_OUT, b"@canary@/n": "c 1:3"},
        split={"d": TO_OUT, b"@canary@/n": "c 1:3"},
    ),
    recipe("whiteout-through-a-link", [symlink("d", OUT)], [whiteout("d/file")], gives={"d": TO_OUT}),
    recipe("opaque-through-a-link", [symlink("d", OUT)], [opaque("d")], gives={"d": TO_OUT}),
    recipe(
        "whiteout-through-a-link-of-its-own-layer",
        [symlink("d", OUT), whiteout("d/file")],
        gives={"d": TO_OUT},
    ),
    recipe(
        "two-links-on-the-way",
        [symlink("a", "b"), symlink("b", UP), file("a/x")],
        gives={"a": "l b", "b": TO_UP, b"@canary@/x": "f "},
        split={"a": "l b", "b": TO_UP, b"@canary@/x": "f "},
    ),
    recipe(
        "deep-below-a-link",
        [symlink("d", OUT), file("d/a/b/c/x")],
        gives={"d": TO_OUT, b"@canary@/a/b/c/x": "f "},
        split={"d": TO_OUT, b"@canary@/a/b/c/x": "f "},
    ),
    recipe(
        "link-below-a-link",
        [symlink("a", "b"), folder("b"), symlink("b/c", OUT), file("a/c/x")],
        gives={"a": "l b", "b/c": TO_OUT, b"@canary@/x": "f "},
        split={"a": "l b", "b/c": TO_OUT, b"@canary@/x": "f "},
    ),
    recipe(
        "link-to-dotdot",
        [symlink("d", ".."), file("d/x")],
        gives={"d": "l ..", "x": "f "},
        split={"d": "l ..", "x": "f "},
    ),
    recipe(
        "link-to-the-root",
        [symlink("d", "/"), file("d/etc/x")],
        gives={"d": "l /", "etc/x": "f "},
        split={"d": "l /", "etc/x": "f "},
    ),
    recipe(
        "link-to-dot",
        [symlink("d", "."), file("d/d2/x")],
        gives={"d": "l .", "d2/x": "f "},
        split={"d": "l .", "d2/x": "f "},
    ),
    recipe(
        "dotdot-behind-a-link",
        [symlink("a", "b/c"), folder("b/c"), symlink("d", "a/../../../@canary@"), file("d/x")],
        gives={"a": "l b/c", "b/c": "d", "d": "l a/../../../@canary@", b"@canary@/x": "f "},
        split={"a": "l b/c", "b/c": "d", "d": "l a/../../../@canary@", b"@canary@/x": "f "},
    ),
    recipe(
        "link-to-proc-self-root",
        [symlink("d", "/proc/self/root"), file("d/@canary@/x")],
        gives={"d": "l /proc/self/root", "proc/self/root/@canary@/x": "f "},
        split={"d": "l /proc/self/root", "proc/self/root/@canary@/x": "f "},
    ),
    recipe(
        "link-to-proc-self-cwd",
        [symlink("d", "/proc/self/cwd"), file("d/x")],
        gives={"d": "l /proc/self/cwd", "proc/self/cwd/x": "f "},
        split={"d": "l /proc/self/cwd", "proc/self/cwd/x": "f "},
    ),
    recipe(
        "link-to-a-descriptor",
        [symlink("d", "/dev/fd/3"), file("d/x")],
        gives={"d": "l /dev/fd/3", "dev/fd/3/x": "f "},
        split={"d": "l /dev/fd/3", "dev/fd/3/x": "f "},
    ),
    recipe(
        "link-with-a-slash",
        [symlink("d", OUT + b"/"), file("d/x")],
        gives={"d": "l /@canary@/", b"@canary@/x": "f "},
        split={"d": "l /@canary@/", b"@canary@/x": "f "},
    ),
    recipe(
        "link-with-many-slashes",
        [symlink("d", b"////" + CANARY + b"//."), file("d/x")],
        gives={"d": "l ////@canary@//.", b"@canary@/x": "f "},
        split={"d": "l ////@canary@//.", b"@canary@/x": "f "},
    ),
    recipe(
        "link-to-itself",
        [symlink("d", "d"), file("d/x")],
        gives=layer_error("too many symbolic links", "'d'"),
        split=layer_error("too many symbolic links", "'d'"),
    ),
    recipe(
        "links-in-a-circle",
        [symlink("a", "b"), symlink("b", "a"), file("a/x")],
        gives=layer_error("too many symbolic links", "'a'"),
        split=layer_error("too many symbolic links", "'a'"),
    ),
    recipe(
        "link-below-itself",
        [symlink("a", "a/a"), file("a/x")],
        gives=layer_error("too many symbolic links", "'a'"),
        split=layer_error("too many symbolic links", "'a'"),
    ),
    recipe(
        "as-many-links-as-the-kernel-follows",
        chain_of(40),
        [file("l0/x")],
        gives={**{f"l{n}": f"l l{n + 1}" for n in range(39)}, "l39": "l end", "end/x": "f "},
    ),
    recipe("one-link-more", chain_of(41), [file("l0/x")], gives=layer_error("too many symbolic links", "'l0'")),
    recipe(
        "a-target-without-end",
        [symlink("d", "a/../" * 800 + "@canary@"), file("d/x")],
        gives={"d": f"l {'a/../' * 800}@canary@", b"@canary@/x": "f "},
        split={"d": f"l {'a/../' * 800}@canary@", b"@canary@/x": "f "},
    ),
    recipe(
        "links-past-path-max",  # a realpath that fails must not count as a check
        [
            folder(STEPS),
            *(symlink("/".join([STEP] * n + ["abcdefghijklmnop"[n]]), STEP) for n in range(16)),
            symlink("/".join(["abcdefghijklmnop"[n] for n in range(16)]) + "/" + "l" * 254, "../" * 16),
            file("escape/x"),
        ],
        gives={
            STEPS: "d",
            **{"/".join([STEP] * n + ["abcdefghijklmnop"[n]]): f"l {STEP}" for n in range(16)},
            f"{STEPS}/{'l' * 254}": f"l {'../' * 16}",
            "escape/x": "f ",
        },
    ),
    recipe(
        "links-past-path-max-over-two-layers",
        [
            folder(STEPS),
            *(symlink("/".join([STEP] * n + ["a"]), STEP) for n in range(16)),
            symlink("esc", LONG_WAY + "/" + "../" * 40 + "@canary@"),
        ],
        [file("esc/x", b"evil")],
        gives={
            STEPS: "d",
            **{"/".join([STEP] * n + ["a"]): f"l {STEP}" for n in range(16)},
            "esc": f"l {LONG_WAY}/{'../' * 40}@canary@",
            b"@canary@/x": "f evil",
        },
    ),
    recipe("an-empty-target", [block(b"l", b"2")], gives=tar_error("link without a target", "l")),
    recipe(
        "an-empty-pax-target",
        [pax((b"linkpath", b"")) + block(b"l", b"2", link=b"t")],
        gives=tar_error("link without a target", "l"),
    ),
    recipe(
        "an-empty-pax-target-of-a-file",
        [pax((b"linkpath", b"")) + block(b"f", size=1) + padded(b"x"), file("next")],
        gives={"f": "f x", "next": "f "},
    ),
    recipe(
        "a-nul-in-a-target", [pax((b"linkpath", b"a\0b")) + block(b"l", b"2")], gives=tar_error("NUL within a name")
    ),
    recipe(
        "a-target-over-path-max",
        [symlink("l", "t" * 5000)],
        gives=layer_error("target of a symbolic link is longer than 4095 bytes", "'l'"),
    ),
    recipe("a-target-of-path-max", [symlink("l", "t" * 4095)], gives={"l": f"l {'t' * 4095}"}),
    # --- in place of a symbolic link
    recipe(
        "file-over-a-link",
        [symlink("f", OUT + b"/file"), file("f", b"mine", mode=0o4777)],
        gives={"f": "f mine [4777]"},
        split={"f": "f mine [4777]"},
    ),
    recipe(
        "directory-over-a-link", [symlink("d", OUT), folder("d", 0o777)], gives={"d": "d [777]"}, split={"d": "d [777]"}
    ),
    recipe(
        "directory-over-a-link-and-a-file-in-it",
        [symlink("d", OUT), folder("d"), file("d/x")],
        gives={"d/x": "f "},
        split={"d/x": "f "},
    ),
    recipe(
        "fifo-over-a-link",
        [symlink("f", OUT + b"/file"), fifo("f", mode=0o666)],
        gives={"f": "p [666]"},
        split={"f": "p [666]"},
    ),
    recipe(
        "device-over-a-link",
        [symlink("f", OUT + b"/file"), device("f", 1, 3)],
        gives={"f": "c 1:3"},
        split={"f": "c 1:3"},
    ),
    recipe("link-over-a-link", [symlink("f", "a"), symlink("f", OUT)], gives={"f": TO_OUT}, split={"f": TO_OUT}),
    recipe(
        "hardlink-over-a-link",
        [file("a", b"1"), symlink("f", OUT + b"/file"), hardlink("f", "a")],
        gives={"a": "f 1", "f": "= a"},
        split={"a": "f 1", "f": "= a"},
    ),
    recipe(
        "attributes-over-a-link",
        [symlink("f", OUT + b"/file"), file("f", b"1", uid=7, xattrs=((b"user.a", b"1"),))],
        gives={"f": "f 1 [uid=7 user.a=1]"},
        split={"f": "f 1 [uid=7 user.a=1]"},
    ),
    # --- a component is replaced between two entries
    recipe(
        "directory-becomes-a-link",
        [file("a/x", b"1"), symlink("a", OUT), file("a/x", b"evil")],
        gives={"a": TO_OUT, b"@canary@/x": "f evil"},
        split={"a": TO_OUT, b"@canary@/x": "f evil"},
    ),
    recipe(
        "parent-of-a-parent-becomes-a-link",
        [file("a/b/x", b"1"), symlink("a", OUT), file("a/b/y")],
        gives={"a": TO_OUT, b"@canary@/b/y": "f "},
        split={"a": TO_OUT, b"@canary@/b/y": "f "},
    ),
    recipe(
        "directory-becomes-a-link-and-one-again",
        [file("a/x"), symlink("a", OUT), folder("a", 0o700), file("a/y")],
        gives={"a": "d [700]", "a/y": "f "},
        split={"a": "d [700]", "a/y": "f "},
    ),
    recipe(
        "link-goes-by-a-whiteout-and-comes-back",
        [symlink("a", "b")],
        [whiteout("a"), symlink("a", OUT)],
        [file("a/x")],
        gives={"a": TO_OUT, b"@canary@/x": "f "},
    ),
    recipe(
        "whiteout-link-and-file-in-one-layer",
        [file("a/b")],
        [whiteout("a"), symlink("a", OUT), file("a/x")],
        gives={"a": TO_OUT, b"@canary@/x": "f "},
    ),
    recipe(
        "file-becomes-a-link",
        [file("a", b"1"), symlink("a", OUT + b"/file"), file("a", b"2")],
        gives={"a": "f 2"},
        split={"a": "f 2"},
    ),
    recipe(
        "link-changes-under-its-user",
        [folder("one"), folder("two"), symlink("l", "one")],
        [file("l/a"), symlink("l", OUT)],
        [file("l/b")],
        gives={"one/a": "f ", "two": "d", "l": TO_OUT, b"@canary@/b": "f "},
    ),
    recipe(
        "opaque-then-link",
        [file("a/x")],
        [opaque("a"), symlink("a", OUT)],
        [file("a/y")],
        gives={"a": TO_OUT, b"@canary@/y": "f "},
    ),
    # --- below a non-directory
    recipe("below-a-file", [file("a"), file("a/x")], gives=below_own("'a'"), split={"a/x": "f "}),
    recipe("below-a-fifo", [fifo("a"), file("a/x")], gives=below_own("'a'"), split={"a/x": "f "}),
    recipe("below-a-device", [device("a", 1, 3), file("a/x")], gives=below_own("'a'"), split={"a/x": "f "}),
    recipe(
        "below-a-hardlink",
        [file("f"), hardlink("a", "f"), file("a/x")],
        gives=below_own("'a'"),
        split={"f": "f ", "a/x": "f "},
    ),
    recipe(
        "below-a-link-to-a-file",
        [file("f", b"1"), symlink("l", "f"), file("l/x")],
        gives=below_own("'l'"),
        split={"f/x": "f ", "l": "l f"},
    ),
    recipe(
        "below-a-dangling-link",
        [symlink("l", "no/such"), file("l/x")],
        gives={"l": "l no/such", "no/such/x": "f "},
        split={"l": "l no/such", "no/such/x": "f "},
    ),
    # --- hard links
    recipe("hardlink-to-the-host", [hardlink("h", OUT + b"/file")], gives=layer_error(NOTHING, "'h'")),
    recipe(
        "hardlink-to-etc-shadow", [hardlink("h", "/etc/shadow")], gives=layer_error(f"{NOTHING} (etc/shadow)", "'h'")
    ),
    recipe("hardlink-upwards", [hardlink("h", "../../etc/passwd")], gives=escapes("'h'")),
    recipe(
        "hardlink-through-a-link",
        [symlink("d", OUT), hardlink("h", "d/file")],
        gives=layer_error(NOTHING, "'h'"),
        split=layer_error(NOTHING, "'h'"),
    ),
    recipe(
        "hardlink-through-a-chain-of-links",
        [symlink("a", "."), symlink("b", "a/.."), hardlink("h", b"b/" + CANARY + b"/file"), file("h", b"evil")],
        gives=layer_error(NOTHING, "'h'"),
        split=layer_error(NOTHING, "'h'"),
    ),
    recipe(
        "hardlink-to-a-link-then-a-file",
        [symlink("s", OUT + b"/file"), hardlink("h", "s"), file("h", b"evil")],
        gives={"s": "l /@canary@/file", "h": "f evil"},
        split={"s": "l /@canary@/file", "h": "f evil"},
    ),
    recipe(
        "hardlink-to-a-link-with-a-mode",
        [symlink("s", OUT + b"/file"), hardlink("h", "s", mode=0o777, uid=5)],
        gives={"h": "l /@canary@/file", "s": "= h"},
        split={"h": "l /@canary@/file", "s": "= h"},
    ),
    recipe(
        "hardlink-with-other-attributes",
        [file("a", b"1"), hardlink("h", "a", mode=0o4777, uid=9, mtime=9, xattrs=((b"user.a", b"1"),))],
        gives={"a": "f 1", "h": "= a"},
        split={"a": "f 1", "h": "= a"},
    ),
    recipe(
        "hardlink-below-a-lower-link",
        [file("a"), symlink("d", OUT), hardlink("d/h", "a")],
        gives={"a": "f ", "d": TO_OUT, b"@canary@/h": "= a"},
        split={"a": "f ", "d": TO_OUT, b"@canary@/h": "= a"},
    ),
    recipe("hardlink-to-itself", [hardlink("a", "a")], gives=layer_error(NOTHING, "'a'")),
    recipe("hardlinks-in-a-circle", [hardlink("a", "b"), hardlink("b", "a")], gives=layer_error(NOTHING, "'a'")),
    recipe(
        "hardlink-before-its-target",
        [hardlink("h", "a"), file("a")],
        gives=layer_error(NOTHING, "'h'"),
        split=layer_error(NOTHING, "'h'"),
    ),
    recipe(
        "hardlink-to-a-directory",
        [folder("d"), hardlink("h", "d")],
        gives=layer_error("to a directory", "'h'"),
        split=layer_error("to a directory", "'h'"),
    ),
    recipe("hardlink-to-the-root", [hardlink("h", "/")], gives=layer_error("to a directory", "'h'")),
    recipe(
        "hardlink-to-an-implied-directory",
        [file("d/x"), hardlink("h", "d")],
        gives=layer_error("to a directory", "'h'"),
        split=layer_error("to a directory", "'h'"),
    ),
    recipe(
        "hardlink-to-what-a-whiteout-took",
        [file("a")],
        [whiteout("a"), hardlink("h", "a")],
        gives=layer_error(NOTHING, "'h'"),
    ),
    recipe(
        "hardlink-to-a-marker", [file("a")], [whiteout("a"), hardlink("h", ".wh.a")], gives=layer_error(NOTHING, "'h'")
    ),
    recipe(
        "hardlink-to-a-device",
        [device("n", 1, 3, mode=0o600), hardlink("h", "n", mode=0o666)],
        gives={"h": "c 1:3 [600]", "n": "= h"},
        split={"h": "c 1:3 [600]", "n": "= h"},
    ),
    recipe(
        "hardlink-to-a-fifo",
        [fifo("p"), hardlink("h", "p")],
        gives={"h": "p", "p": "= h"},
        split={"h": "p", "p": "= h"},
    ),
    recipe("hardlink-with-a-slash", [file("a", b"1"), hardlink("h", "a/")], gives={"a": "f 1", "h": "= a"}),
    recipe("hardlink-without-a-target", [block(b"h", b"1")], gives=tar_error("link without a target", "h")),
    recipe(
        "hardlink-with-a-nul", [pax((b"linkpath", b"a\0b")) + block(b"h", b"1")], gives=tar_error("NUL within a name")
    ),
    recipe(
        "hardlink-and-its-target-anew",
        [file("a", b"1"), hardlink("h", "a"), file("a", b"2")],
        gives={"a": "f 2", "h": "f 1"},
        split={"a": "f 2", "h": "f 1"},
    ),
    recipe(
        "hardlink-over-the-directory-of-its-target",
        [file("d/f", b"1"), hardlink("d", "d/f")],
        gives={"d": "f 1"},
        split={"d": "f 1"},
    ),
    recipe(
        "hardlink-to-a-setuid-file",
        [file("su", b"1", mode=0o4755, uid=5), hardlink("h", "su")],
        gives={"h": "f 1 [4755 uid=5]", "su": "= h"},
        split={"h": "f 1 [4755 uid=5]", "su": "= h"},
    ),
]
