"""Paths that leave the root, replace it, or resemble another path."""

from __future__ import annotations

from tests.hostile.recipe import ROOT_KIND, escapes, layer_error, recipe, tar_error
from tests.support.headers import block, extended, pax
from tests.support.layers import device, fifo, file, folder, hardlink, opaque, symlink, whiteout

OLD_GNU = b"ustar  \0"

RECIPES = [
    # --- parent directories
    recipe("dotdot-file", [file("../x", b"1")], gives=escapes("../x")),
    recipe("dotdot-many", [file("../" * 20 + "etc/passwd")], gives=escapes("../etc/passwd")),
    recipe("dotdot-after-a-name", [file("a/../../x")], gives=escapes("a/../../x")),
    recipe("dotdot-after-dots-and-slashes", [file(".//./../x")], gives=escapes("./../x")),
    recipe("dotdot-after-the-root", [file("/../x")], gives=escapes("/../x")),
    recipe("dotdot-alone", [folder("..")], gives=escapes("..")),
    recipe("dotdot-directory", [folder("../d", 0o777)], gives=escapes("../d")),
    recipe("dotdot-symlink", [symlink("../l", "/etc")], gives=escapes("../l")),
    recipe("dotdot-hardlink", [file("a"), hardlink("../h", "a")], gives=escapes("../h")),
    recipe("dotdot-fifo", [fifo("../p")], gives=escapes("../p")),
    recipe("dotdot-device", [device("../null", 1, 3)], gives=escapes("../null")),
    recipe("dotdot-whiteout", [whiteout("../file")], gives=escapes("../.wh.file")),
    recipe("dotdot-opaque", [opaque("..")], gives=escapes("../.wh..wh..opq")),
    recipe("dotdot-to-the-spool", [file("../spool/0.0", b"1")], gives=escapes("../spool/0.0")),
    recipe("dotdot-to-the-canary", [file(b"../../@canary@/file", b"evil")], gives=escapes("../../")),
    recipe(
        "dotdot-after-good-entries", [file("a", b"1"), file("../a", b"2")], gives=escapes("../a"), split=escapes("../a")
    ),
    recipe("dotdot-that-stays-inside", [file("a/b/../x", b"1")], gives={"a/x": "f 1"}),
    recipe(
        "dotdot-is-taken-by-name",
        [symlink("l", "d/e"), file("l/../x", b"1")],
        gives={"l": "l d/e", "x": "f 1"},
        split={"l": "l d/e", "x": "f 1"},
    ),
    recipe("dotdot-in-the-prefix", [block(b"x", prefix=b"..")], gives=escapes("../x")),
    recipe("dotdot-behind-the-prefix", [block(b"../../x", prefix=b"a")], gives=escapes("a/../../x")),
    recipe("dotdot-in-a-prefix-that-does-not-count", [block(b"x", prefix=b"..", magic=OLD_GNU)], gives={"x": "f "}),
    recipe("dotdot-in-pax", [pax((b"path", b"../x")) + block(b"x")], gives=escapes("../x")),
    recipe("dotdot-hidden-by-pax", [pax((b"path", b"x")) + block(b"../x")], gives={"x": "f "}),
    recipe("dotdot-in-a-long-name", [extended(b"../x\0", b"L") + block(b"x")], gives=escapes("../x")),
    recipe(
        "dotdot-in-a-sparse-name",
        [pax((b"GNU.sparse.name", b"../x"), (b"GNU.sparse.map", b"0,0"), (b"GNU.sparse.realsize", b"0")) + block(b"x")],
        gives=escapes("../x"),
    ),
    # --- absolute paths
    recipe("absolute-file", [file("/etc/x", b"1")], gives={"etc/x": "f 1"}),
    recipe("absolute-with-two-slashes", [file("//etc//x", b"1")], gives={"etc/x": "f 1"}),
    recipe("absolute-to-the-canary", [file(b"/@canary@/file", b"evil")], gives={b"@canary@/file": "f evil"}),
    recipe("absolute-directory-of-the-canary", [folder(b"/@canary@", 0o777)], gives={b"@canary@": "d [777]"}),
    recipe("absolute-whiteout", [whiteout("/@canary@/file")], gives={}),
    recipe("absolute-opaque", [opaque("/@canary@")], gives={}),
    recipe("absolute-in-pax", [pax((b"path", b"/etc/x")) + block(b"y")], gives={"etc/x": "f "}),
    recipe("absolute-prefix", [block(b"x", prefix=b"/etc")], gives={"etc/x": "f "}),
    recipe("proc-self-root", [file("proc/self/root/x", b"1")], gives={"proc/self/root/x": "f 1"}),
    recipe("proc-self-fd", [file("/proc/self/fd/3", b"1")], gives={"proc/self/fd/3": "f 1"}),
    recipe("dev-shm", [file("/dev/shm/x", b"1")], gives={"dev/shm/x": "f 1"}),
    # --- the root itself
    recipe("root-as-symlink", [symlink(".", "/@canary@"), file("x")], gives=ROOT_KIND, split=ROOT_KIND),
    recipe("root-as-symlink-by-a-slash", [symlink("/", "/@canary@")], gives=ROOT_KIND),
    recipe("root-as-symlink-by-dotdot", [symlink("a/..", "/@canary@")], gives=ROOT_KIND),
    recipe("root-as-file", [block(b".", b"0")], gives=ROOT_KIND),
    recipe("root-as-file-by-a-slash", [block(b"/", b"0")], gives=tar_error("name ends in '/'", "/")),
    recipe("root-as-hardlink", [file("a"), hardlink(".", "a")], gives=ROOT_KIND, split=ROOT_KIND),
    recipe("root-as-fifo", [fifo(".")], gives=ROOT_KIND),
    recipe("root-as-device", [device("./", 1, 3)], gives=ROOT_KIND),
    recipe("root-as-dotdot-directory", [folder("a/..", 0o700)], gives={"": "d [700]"}),
    recipe("root-with-attributes", [folder("./", 0o2750, uid=5, gid=6)], gives={"": "d [2750 uid=5 gid=6]"}),
    recipe("root-by-an-empty-name", [block(b"", b"5")], gives=tar_error("entry without a name")),
    recipe(
        "root-by-an-empty-pax-path", [pax((b"path", b"")) + block(b"x", b"0")], gives=tar_error("entry without a name")
    ),
    # --- misleading names
    recipe("three-dots", [file(".../x", b"1"), file("..a", b"2")], gives={".../x": "f 1", "..a": "f 2"}),
    recipe("dots-and-blanks", [file(".. /x"), file(" ../x")], gives={".. /x": "f ", " ../x": "f "}),
    recipe("backslashes", [file(b"..\\..\\x", b"1")], gives={b"..\\..\\x": "f 1"}),
    recipe("drive-letter", [file("C:\\x")], gives={"C:\\x": "f "}),
    recipe("percent-encoded-dots", [file("%2e%2e/x")], gives={"%2e%2e/x": "f "}),
    recipe("overlong-utf-8-dots", [file(b"\xc0\xae\xc0\xae/x")], gives={b"\xc0\xae\xc0\xae/x": "f "}),
    recipe("full-width-dots", [file("．．/x")], gives={"．．/x": "f "}),
    recipe(
        "shell-words", [file("$(touch x)"), file("~/x"), file("*")], gives={"$(touch x)": "f ", "~/x": "f ", "*": "f "}
    ),
    recipe("options", [file("-rf"), folder("--one-file-system")], gives={"-rf": "f ", "--one-file-system": "d"}),
    recipe("newline", [file("a\nb d 777 0 0"), file("a")], gives={"a\nb d 777 0 0": "f ", "a": "f "}),
    recipe("quotes-and-hash", [file('"a'), file("#b"), file("c'\"d")], gives={'"a': "f ", "#b": "f ", "c'\"d": "f "}),
    recipe("escape-sequence", [file("\x1b]0;evil\x07\x1b[2J")], gives={"\x1b]0;evil\x07\x1b[2J": "f "}),
    recipe("escape-sequence-of-a-culprit", [file("\x1b[2J/../..")], gives=escapes("\\x1b[2J/../..")),
    recipe("not-utf-8", [file(b"\xff\xfe", b"1")], gives={b"\xff\xfe": "f 1"}),
    recipe("surrogates", [file(b"\xed\xb3\xbf")], gives={b"\xed\xb3\xbf": "f "}),
    recipe(
        "two-unicode-forms",
        [file("\u00e9", b"1"), file("e\u0301", b"2")],
        gives={"\u00e9": "f 1", "e\u0301": "f 2"},
    ),
    recipe(
        "two-cases",
        [symlink("A", "/@canary@"), file("a/x", b"1")],
        gives={"A": "l /@canary@", "a/x": "f 1"},
        split={"A": "l /@canary@", "a/x": "f 1"},
    ),
    recipe("spool-name", [file("0.0", b"1"), file("0.0", b"2"), file("0.1", b"3")], gives={"0.0": "f 2", "0.1": "f 3"}),
    recipe(
        "staging-name", [file(".out.fastpull-00000000/root/x", b"1")], gives={".out.fastpull-00000000/root/x": "f 1"}
    ),
    recipe(
        "one-path-in-two-spellings",
        [file("a/x", b"1"), file("./a//./x", b"2")],
        gives={"a/x": "f 2"},
        split={"a/x": "f 2"},
    ),
    recipe("slash-behind-a-file", [block(b"f/", b"0")], gives=tar_error("name ends in '/'", "f/")),
    recipe(
        "slash-behind-a-symlink",
        [symlink("l/", "/@canary@"), file("l/x")],
        gives={"l": "l /@canary@", b"@canary@/x": "f "},
        split={"l": "l /@canary@", b"@canary@/x": "f "},
    ),
    recipe("nul-in-a-pax-path", [pax((b"path", b"ok\0/../../x")) + block()], gives=tar_error("NUL within a name")),
    recipe("nul-in-a-long-name", [extended(b"ok\0../../x\0", b"L") + block()], gives=tar_error("NUL within a name")),
    recipe("nul-in-a-header-name", [block(b"ok\0../../x")], gives={"ok": "f "}),
    recipe("name-of-256-bytes", [file("n" * 256)], gives=layer_error("name is longer than 255 bytes", "nnn")),
    recipe("name-of-255-bytes", [file("n" * 255, b"1")], gives={"n" * 255: "f 1"}),
    recipe(
        "path-beyond-path-max",
        [file("/".join(["n" * 250] * 20) + "/f", b"1")],
        gives={"/".join(["n" * 250] * 20) + "/f": "f 1"},
    ),
]
