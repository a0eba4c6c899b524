"""Archives that two readers interpret differently, so that a scanner sees other content than another tool unpacks."""

from __future__ import annotations

import struct

from fastpull.layers.archive import padded
from tests.hostile.recipe import recipe, tar_error
from tests.support.headers import END, block, extended, pax
from tests.support.layers import file, folder

INNER = block(b"smuggled")
GNU = b"ustar  \0"
EXTENDED_TWICE = tar_error("two extended headers of one kind")
DANGLING = tar_error("extended header without an entry")
RECORD = tar_error("malformed pax record")
NUMBER = tar_error("malformed number in header")
SPARSE = tar_error("malformed map of a sparse file", "f")
SIZE = tar_error("is no file has a size")
TYPE = tar_error("unknown type of entry")
GLOBAL = tar_error("global pax header")
TRUNCATED = tar_error("the archive ends within an entry")


def sparse(text: bytes, real: bytes = b"2000", *, size: int | None = None) -> bytes:
    """Return a sparse file in format 1.0, with the map before the payload."""
    body = padded(text)
    head = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", real))
    return head + block(b"f", b"0", len(body) if size is None else size) + body


def old_sparse(*segments: tuple[int, int], real: int = 2000, stored: int = 0) -> bytes:
    """Return a sparse file in the old GNU format, with the map in the header."""
    slots = b"".join(b"%011o\0%011o\0" % segment for segment in segments).ljust(96, b"\0")
    tail = slots + b"\0" + b"%011o\0" % real + bytes(17)
    return block(b"f", b"S", stored, magic=GNU, tail=tail) + bytes(-(-stored // 512) * 512)


def pairs(*records: tuple[bytes, bytes], size: int = 0) -> bytes:
    return pax((b"GNU.sparse.size", b"2000"), *records) + block(b"f", b"0", size) + bytes(-(-size // 512) * 512)


RECIPES = [
    # --- length of a payload
    recipe(
        "pax-size-over-a-header-of-none",
        [pax((b"size", b"512")) + block(b"f") + INNER, file("next")],
        gives={"f": "f 512 bytes", "next": "f "},
    ),
    recipe(
        "pax-size-of-none-over-the-header-s",
        [pax((b"size", b"0")) + block(b"f", size=512), file("next")],
        gives={"f": "f ", "next": "f "},
    ),
    recipe(
        "pax-size-of-none-hides-no-payload",
        [pax((b"size", b"0")) + block(b"f", size=512) + b"?" * 512],
        gives=tar_error("checksum"),
    ),
    recipe(
        "two-pax-sizes",
        [pax((b"size", b"512"), (b"size", b"0")) + block(b"f"), file("next")],
        gives={"f": "f ", "next": "f "},
    ),
    recipe("empty-pax-size", [pax((b"size", b"")) + block(b"f", size=3) + padded(b"abc")], gives=RECORD),
    recipe(
        "malformed-mode-of-an-extended-header",
        [block(b"g", b"x", 12, mode=b"/000644\0") + padded(b"12 path=abc\n"), file("next")],
        gives=NUMBER,
    ),
    recipe("mode-in-base-256-that-some-read", [block(b"f", mode=b"\x93000644\0"), file("next")], gives=NUMBER),
    recipe(
        "malformed-device-number-of-a-file", [block(b"f", devices=b"0x00001\0" + bytes(8)), file("next")], gives=NUMBER
    ),
    recipe(
        "pax-size-for-the-header-after-next",
        [pax((b"size", b"512")) + extended(b"g\0", b"L") + block(b"f") + INNER, file("next")],
        gives={"g": "f 512 bytes", "next": "f "},
    ),
    recipe(
        "pax-size-for-a-long-name",
        [extended(b"g\0", b"L") + pax((b"size", b"512")) + block(b"f") + INNER],
        gives={"g": "f 512 bytes"},
    ),
    recipe("pax-size-in-hexadecimal", [pax((b"size", b"0x200")) + block()], gives=RECORD),
    recipe("pax-size-with-a-blank", [pax((b"size", b" 512")) + block()], gives=RECORD),
    recipe("pax-size-with-a-sign", [pax((b"size", b"+512")) + block()], gives=RECORD),
    recipe("pax-size-below-nothing", [pax((b"size", b"-512")) + block()], gives=RECORD),
    recipe("pax-size-with-an-underscore", [pax((b"size", b"5_12")) + block()], gives=RECORD),
    recipe("pax-size-in-arabic-digits", [pax((b"size", "٥".encode())) + block()], gives=RECORD),
    recipe("pax-size-with-a-fraction", [pax((b"size", b"512.0")) + block()], gives=RECORD),
    recipe("header-size-in-octal-that-is-none", [block(size=b"00000000089\0")], gives=NUMBER),
    recipe("header-size-with-a-word", [block(size=b"000 0000001\0")], gives=NUMBER),
    recipe(
        "header-size-in-base-256",
        [block(b"f", size=b"\x80" + bytes(10) + b"\3") + padded(b"abc")],
        gives={"f": "f abc"},
    ),
    recipe("directory-with-payload", [block(b"d", b"5", 512) + INNER], gives=SIZE),
    recipe("symlink-with-payload", [block(b"l", b"2", 512, link=b"t") + INNER], gives=SIZE),
    recipe("fifo-with-payload", [block(b"p", b"6", 512) + INNER], gives=SIZE),
    recipe("device-with-payload", [block(b"n", b"3", 512) + INNER], gives=SIZE),
    recipe(
        "hardlink-with-pax-payload",
        [file("a"), pax((b"size", b"512")) + block(b"h", b"1", link=b"a") + INNER],
        gives=SIZE,
    ),
    recipe(
        "hardlink-with-a-pax-size-of-nothing",
        [file("a"), pax((b"size", b"0")) + block(b"h", b"1", 512, link=b"a"), file("b")],
        gives={"a": "f ", "h": "= a", "b": "f "},
    ),
    recipe("directory-with-pax-payload", [pax((b"size", b"512")) + block(b"d", b"5") + INNER], gives=SIZE),
    recipe(
        "hardlink-with-a-size",
        [file("a", b"1"), block(b"h", b"1", 512, link=b"a"), file("next")],
        gives={"a": "f 1", "h": "= a", "next": "f "},
    ),
    recipe(
        "padding-that-is-not-zero",
        [block(b"f", size=1) + b"x" + INNER[1:], file("next")],
        gives={"f": "f x", "next": "f "},
    ),
    # --- name of an entry
    recipe("two-pax-paths", [pax((b"path", b"one"), (b"path", b"two")) + block(b"f")], gives={"two": "f "}),
    recipe(
        "pax-and-long-name-differ",
        [pax((b"path", b"one")) + extended(b"two\0", b"L") + block(b"f")],
        gives=tar_error("differently"),
    ),
    recipe(
        "long-name-and-pax-differ",
        [extended(b"two\0", b"L") + pax((b"path", b"one")) + block(b"f")],
        gives=tar_error("differently"),
    ),
    recipe(
        "pax-and-long-name-agree",
        [extended(b"one\0", b"L") + pax((b"path", b"one")) + block(b"f")],
        gives={"one": "f "},
    ),
    recipe(
        "pax-and-long-link-differ",
        [pax((b"linkpath", b"one")) + extended(b"two\0", b"K") + block(b"l", b"2")],
        gives=tar_error("differently"),
    ),
    recipe("two-pax-headers", [pax((b"path", b"one")) + pax((b"path", b"two")) + block(b"f")], gives=EXTENDED_TWICE),
    recipe("two-long-names", [extended(b"one\0", b"L") + extended(b"two\0", b"L") + block(b"f")], gives=EXTENDED_TWICE),
    recipe(
        "two-long-links",
        [extended(b"one\0", b"K") + extended(b"two\0", b"K") + block(b"l", b"2")],
        gives=EXTENDED_TWICE,
    ),
    recipe(
        "global-header-between-a-header-and-its-entry",
        [pax((b"path", b"one")) + pax((b"uid", b"5"), typeflag=b"g") + block(b"f")],
        gives=EXTENDED_TWICE,
    ),
    recipe("long-name-that-is-empty", [extended(b"\0", b"L") + block(b"f")], gives=tar_error("entry without a name")),
    recipe("long-name-without-its-nul", [extended(b"one", b"L") + block(b"f")], gives={"one": "f "}),
    recipe(
        "long-name-makes-a-v7-directory", [extended(b"one/\0", b"L") + block(b"f", b"\0")], gives={"one": "d [644]"}
    ),
    recipe(
        "cut-name-of-a-v7-file-ends-in-a-slash",
        [extended(b"d" * 99 + b"/file\0", b"L") + block(b"d" * 99 + b"/", b"\0", 3) + padded(b"abc")],
        gives={"d" * 99 + "/file": "f abc"},
    ),
    recipe("prefix-and-long-name", [extended(b"one\0", b"L") + block(b"f", prefix=b"p")], gives={"one": "f "}),
    recipe("prefix-with-another-version", [block(b"f", prefix=b"p", magic=b"ustar\0\0\0")], gives={"p/f": "f "}),
    recipe("prefix-of-a-star-archive", [block(b"f", prefix=b"p" + bytes(130) + b"00000000000 ")], gives={"p/f": "f "}),
    recipe(
        "name-that-fills-its-field", [block(b"n" * 100, prefix=b"p" * 155)], gives={"p" * 155 + "/" + "n" * 100: "f "}
    ),
    recipe("global-path", [pax((b"path", b"one"), typeflag=b"g") + block(b"f")], gives=GLOBAL),
    recipe("global-linkpath", [pax((b"linkpath", b"one"), typeflag=b"g") + block(b"l", b"2", link=b"t")], gives=GLOBAL),
    recipe("global-size", [pax((b"size", b"512"), typeflag=b"g") + block(b"f")], gives=GLOBAL),
    recipe("global-attribute", [pax((b"SCHILY.xattr.user.a", b"1"), typeflag=b"g") + block(b"f")], gives=GLOBAL),
    recipe("global-sparse-map", [pax((b"GNU.sparse.map", b"0,1"), typeflag=b"g") + block(b"f")], gives=GLOBAL),
    recipe(
        "global-owner-and-its-end",
        [pax((b"uid", b"5"), typeflag=b"g") + block(b"a") + pax((b"uid", b""), typeflag=b"g") + block(b"b")],
        gives={"a": "f  [uid=5]", "b": "f "},
    ),
    # --- pax records
    recipe("record-that-is-too-long", [extended(b"99 path=a\n") + block()], gives=RECORD),
    recipe("record-that-is-too-short", [extended(b"8 path=a\n") + block()], gives=RECORD),
    recipe("record-without-its-newline", [extended(b"10 path=ab") + block()], gives=RECORD),
    recipe("record-without-a-key", [extended(b"5 =a\n") + block()], gives=RECORD),
    recipe("record-without-an-equals-sign", [extended(b"8 path_\n") + block()], gives=RECORD),
    recipe("record-of-length-0", [extended(b"0 path=a\n") + block()], gives=RECORD),
    recipe("record-of-a-length-below-nothing", [extended(b"-5 path=a\n") + block()], gives=RECORD),
    recipe("record-of-an-overflowing-length", [extended(b"99999999999999999999999 path=a\n") + block()], gives=RECORD),
    recipe("record-with-a-nul-in-its-key", [pax((b"pa\0th", b"evil")) + block()], gives=RECORD),
    recipe("record-with-nothing-but-blanks", [extended(b"     ") + block()], gives=RECORD),
    recipe(
        "record-within-a-value",
        [pax((b"comment", b"x\n10 path=evil\n"), (b"uid", b"7")) + block(b"f")],
        gives={"f": "f  [uid=7]"},
    ),
    recipe("nuls-behind-the-records", [extended(b"9 path=a\n" + bytes(10)) + block()], gives=RECORD),
    recipe("key-in-another-case", [pax((b"PATH", b"evil")) + block(b"f")], gives={"f": "f "}),
    recipe("key-with-a-blank", [pax((b" path", b"evil")) + block(b"f")], gives={"f": "f "}),
    recipe(
        "unknown-keys",
        [pax((b"hdrcharset", b"BINARY"), (b"LIBARCHIVE.creationtime", b"x"), (b"uname", b"root")) + block(b"f")],
        gives={"f": "f "},
    ),
    # --- headers
    recipe("extended-header-before-the-end", [file("a"), pax((b"path", b"b"))], gives=DANGLING),
    recipe("long-name-before-the-end", [file("a"), extended(b"b\0", b"L")], gives=DANGLING),
    recipe("extended-header-before-the-end-of-the-stream", block(b"a") + pax((b"path", b"b")), gives=DANGLING),
    recipe("unknown-type", [block(b"f", b"Z", 512) + INNER], gives=TYPE),
    recipe("solaris-extended-header", [extended(b"10 path=b\n", b"X") + block(b"f")], gives=TYPE),
    recipe("volume-header", [block(b"v", b"V")], gives=TYPE),
    recipe("continued-file", [block(b"f", b"M", 512) + INNER], gives=TYPE),
    recipe("dump-directory", [block(b"d/", b"D", 512) + INNER], gives=TYPE),
    recipe("contiguous-file", [block(b"f", b"7", 3) + padded(b"abc")], gives={"f": "f abc"}),
    recipe("wrong-checksum", [file("a"), block(b"f", checksum=b"0000000\0")], gives=tar_error("checksum", "'a'")),
    recipe("checksum-that-is-no-number", [block(b"f", checksum=b"\xff" * 8)], gives=tar_error("checksum")),
    recipe("checksum-of-nothing", [block(b"f", checksum=b"        ")], gives=tar_error("checksum")),
    recipe("no-tar", b"<html>not found</html>".ljust(1024), gives=tar_error("checksum", "byte 0")),
    recipe("magic-of-no-format", [block(b"f", magic=b"evil!\0\0\0", prefix=b"p")], gives={"f": "f "}),
    # --- end of the archive
    recipe(
        "one-zero-block-between-entries",
        [file("a"), bytes(512), file("evil")],
        gives=tar_error("zero block between entries", "'a'"),
    ),
    recipe("entries-behind-the-end", [file("a"), END, file("evil")], gives=tar_error("data after the end", "'a'")),
    recipe("a-byte-behind-the-end", block(b"a") + END + bytes(600) + b"x", gives=tar_error("data after the end")),
    recipe("a-second-archive", block(b"a") + END + block(b"b") + END, gives=tar_error("data after the end")),
    recipe("many-zeros-behind-the-end", block(b"a") + bytes(1 << 20), gives={"a": "f "}),
    recipe("no-end-at-all", block(b"a"), gives={"a": "f "}),
    recipe("nothing-at-all", b"", gives={}),
    recipe("ends-in-a-header", block(b"a") + block(b"b")[:300], gives=TRUNCATED),
    recipe("ends-in-a-payload", block(b"a", size=1000) + bytes(700), gives=TRUNCATED),
    recipe("ends-before-the-padding", block(b"a", size=10) + b"0123456789", gives=TRUNCATED),
    recipe("ends-in-an-extended-header", pax((b"path", b"a"))[:600], gives=TRUNCATED),
    recipe("ends-in-a-zero-block", block(b"a") + bytes(700), gives=TRUNCATED),
    # --- sparse files, in all four encodings
    recipe(
        "sparse-1.0",
        [sparse(b"1\n1000\n3\n", size=515) + padded(b"abc"), file("next")],
        gives={"f": "f 2000 bytes", "next": "f "},
    ),
    recipe("sparse-1.0-map-longer-than-its-payload", [sparse(b"200\n" + b"0\n" * 200, size=300)], gives=SPARSE),
    recipe("sparse-1.0-cut-map", [sparse(b"2\n0\n1\n")], gives=SPARSE),
    recipe("sparse-1.0-overlapping", [sparse(b"2\n0\n100\n50\n100\n", size=712) + bytes(512)], gives=SPARSE),
    recipe(
        "sparse-1.0-piece-that-ends-within-a-block",
        [sparse(b"2\n0\n100\n500\n100\n", size=712) + bytes(512)],
        gives=tar_error("ends within a block", "f"),
    ),
    recipe("sparse-1.0-backwards", [sparse(b"2\n500\n1\n0\n1\n", size=514) + bytes(512)], gives=SPARSE),
    recipe("sparse-1.0-beyond-its-size", [sparse(b"1\n1999\n2\n", size=514) + bytes(512)], gives=SPARSE),
    recipe("sparse-1.0-overflowing", [sparse(b"1\n9223372036854775807\n2\n", size=514) + bytes(512)], gives=SPARSE),
    recipe("sparse-1.0-negative", [sparse(b"1\n-1\n2\n", size=514) + bytes(512)], gives=SPARSE),
    recipe(
        "sparse-1.0-with-a-map-record",
        [
            pax(
                (b"GNU.sparse.major", b"1"),
                (b"GNU.sparse.minor", b"0"),
                (b"GNU.sparse.realsize", b"9"),
                (b"GNU.sparse.map", b"0,1"),
            )
            + block(b"f", size=512)
        ],
        gives=SPARSE,
    ),
    recipe(
        "sparse-2.0",
        [pax((b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9")) + block(b"f")],
        gives=SPARSE,
    ),
    recipe("sparse-0.1-odd-map", [pairs((b"GNU.sparse.map", b"0,1,2"), size=1)], gives=tar_error("malformed map")),
    recipe("sparse-0.1-shorter-than-its-payload", [pairs((b"GNU.sparse.map", b"0,1"), size=100)], gives=SPARSE),
    recipe("sparse-0.1-longer-than-its-payload", [pairs((b"GNU.sparse.map", b"0,100"), size=1)], gives=SPARSE),
    recipe(
        "sparse-0.0-offset-without-a-length", [pairs((b"GNU.sparse.offset", b"0"))], gives=tar_error("malformed map")
    ),
    recipe(
        "sparse-0.0-length-without-an-offset", [pairs((b"GNU.sparse.numbytes", b"0"))], gives=tar_error("malformed map")
    ),
    recipe(
        "sparse-0.0-another-number-of-blocks",
        [pairs((b"GNU.sparse.numblocks", b"2"), (b"GNU.sparse.offset", b"0"), (b"GNU.sparse.numbytes", b"1"), size=1)],
        gives=SPARSE,
    ),
    recipe(
        "sparse-without-a-size", [pax((b"GNU.sparse.map", b"0,1")) + block(b"f", size=1) + padded(b"x")], gives=SPARSE
    ),
    recipe(
        "sparse-without-a-minor-version",
        [pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9")) + block(b"f", size=512) + padded(b"0\n")],
        gives=SPARSE,
    ),
    *(
        recipe(
            f"sparse-0.1-{name}",
            [
                pax((b"GNU.sparse.size", b"9"), (b"GNU.sparse.map", b"8,1"))
                + block(b"f", size=1, magic=magic)
                + padded(b"x")
            ],
            gives=SPARSE,
        )
        for name, magic in (("with-gnu-s-magic", GNU), ("without-a-magic", bytes(8)))
    ),
    recipe("sparse-0.1-of-no-blocks", [pairs((b"GNU.sparse.map", b""))], gives=SPARSE),
    recipe("sparse-0.0-of-no-blocks", [pairs((b"GNU.sparse.numblocks", b"0"))], gives=SPARSE),
    recipe("sparse-without-a-map", [pax((b"GNU.sparse.size", b"9")) + block(b"f")], gives=SPARSE),
    recipe(
        "sparse-name-without-a-map",
        [pax((b"GNU.sparse.name", b"evil")) + block(b"f")],
        gives=tar_error("malformed map", "evil"),
    ),
    recipe("sparse-unknown-record", [pax((b"GNU.sparse.evil", b"1")) + block(b"f")], gives=tar_error("malformed map")),
    recipe(
        "sparse-directory",
        [pax((b"GNU.sparse.size", b"0"), (b"GNU.sparse.map", b"")) + block(b"f", b"5")],
        gives=SPARSE,
    ),
    recipe("old-sparse", [old_sparse((1000, 3), stored=3), file("next")], gives={"f": "f 2000 bytes", "next": "f "}),
    recipe(
        "old-sparse-without-gnu-s-magic", [block(b"f", b"S", tail=bytes(97) + b"%011o\0" % 9 + bytes(17))], gives=SPARSE
    ),
    recipe("old-sparse-overlapping", [old_sparse((0, 100), (50, 100), stored=200)], gives=SPARSE),
    recipe("old-sparse-beyond-its-size", [old_sparse((1999, 2), stored=2)], gives=SPARSE),
    recipe(
        "old-sparse-with-pax-records",
        [pax((b"GNU.sparse.size", b"9"), (b"GNU.sparse.map", b"")) + old_sparse()],
        gives=SPARSE,
    ),
    recipe(
        "old-sparse-of-a-negative-size",
        [block(b"f", b"S", magic=GNU, tail=bytes(97) + b"\xff" * 12 + bytes(17))],
        gives=SPARSE,
    ),
    recipe(
        "old-sparse-cut-map",
        block(b"f", b"S", magic=GNU, tail=bytes(96) + b"\1" + b"%011o\0" % 9 + bytes(17)),
        gives=TRUNCATED,
    ),
    recipe("digits-behind-a-nul", [block(b"d", b"5", uid=struct.pack(">Q", 5))], gives={"d": "d [644]"}),
    recipe("directory-of-many-names", [folder(f"d{n}") for n in range(300)], gives={f"d{n}": "d" for n in range(300)}),
]
