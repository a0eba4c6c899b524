"""Small inputs that would take much memory, disk space or time."""

from __future__ import annotations

from fastpull.layers.archive import padded
from tests.hostile.recipe import layer_error, over_limit, recipe, tar_error
from tests.hostile.recipes.archives import GNU, old_sparse, sparse
from tests.support.headers import block, extended, pax
from tests.support.layers import file, folder, hardlink, opaque, symlink, whiteout

HEADER = over_limit("extended header over 1 MiB")
LAYER = over_limit("--max-layer-size", "'f'")
HUGE = b"%d" % (1 << 62)

RECIPES = [
    # --- headers
    recipe("pax-header-of-a-terabyte", [block(b"x", b"x", 1 << 32)], gives=HEADER),
    recipe("global-header-of-a-gigabyte", [block(b"x", b"g", 1 << 30)], gives=HEADER),
    recipe("long-name-of-a-gigabyte", [block(b"x", b"L", 1 << 30)], gives=HEADER),
    recipe("long-link-of-a-gigabyte", [block(b"x", b"K", 1 << 30)], gives=HEADER),
    recipe(
        "header-one-byte-over", [file("a"), block(b"x", b"x", (1 << 20) + 1)], gives=over_limit("over 1 MiB", "'a'")
    ),
    recipe("header-of-all-it-may-have", [pax((b"comment", b"c" * ((1 << 20) - 20))) + block(b"f")], gives={"f": "f "}),
    recipe(
        "long-name-of-all-it-may-have",
        [extended(b"a/" * ((1 << 19) - 1) + b"a", b"L") + block(b"f")],
        gives=over_limit("255 components"),
    ),
    recipe(
        "long-name-of-one-name",
        [extended(b"a" * (1 << 20), b"L") + block(b"f")],
        gives=layer_error("longer than 255 bytes"),
    ),
    recipe("many-records", [pax(*((b"comment%d" % n, b"") for n in range(40_000))) + block(b"f")], gives={"f": "f "}),
    recipe("many-equal-records", [pax(*[(b"path", b"g")] * 60_000) + block(b"f")], gives={"g": "f "}),
    recipe(
        "digits-without-end", [pax((b"size", b"0" * 100_000 + b"1")) + block(b"f") + padded(b"x")], gives={"f": "f x"}
    ),
    recipe("digits-that-overflow", [pax((b"size", b"9" * 100_000)) + block(b"f")], gives=tar_error("malformed number")),
    # --- sparse files
    recipe("sparse-1.0-of-two-million-segments", [sparse(b"2000000\n")], gives=HEADER),
    recipe("sparse-1.0-map-without-end", [sparse(b"1000000\n" + b"0\n" * 524_290, size=1 << 30)], gives=HEADER),
    recipe("sparse-1.0-of-an-exabyte", [sparse(b"0\n", HUGE)], gives=LAYER),
    recipe(
        "sparse-0.1-of-an-exabyte",
        [pax((b"GNU.sparse.size", HUGE), (b"GNU.sparse.map", HUGE + b",0")) + block(b"f")],
        gives=LAYER,
    ),
    recipe(
        "sparse-0.0-of-an-exabyte",
        [
            pax(
                (b"GNU.sparse.size", HUGE),
                (b"GNU.sparse.numblocks", b"1"),
                (b"GNU.sparse.offset", HUGE),
                (b"GNU.sparse.numbytes", b"0"),
            )
            + block(b"f")
        ],
        gives=LAYER,
    ),
    recipe(
        "old-sparse-of-terabytes", [old_sparse(real=(1 << 33) - 1), *[old_sparse(real=(1 << 33) - 1)] * 40], gives=LAYER
    ),
    recipe(
        "sparse-that-overflows",
        [sparse(b"0\n", b"%d" % ((1 << 63) - 1)), sparse(b"0\n", b"%d" % ((1 << 63) - 1))],
        gives=LAYER,
    ),
    recipe(
        "old-sparse-map-without-end",
        [
            block(b"f", b"S", magic=GNU, tail=bytes(96) + b"\1" + b"%011o\0" % 9 + bytes(17))
            + (bytes(504) + b"\1" + bytes(7)) * 2100
        ],
        gives=HEADER,
    ),
    recipe(
        "sparse-of-ten-thousand-empty-segments",
        [pax((b"GNU.sparse.size", b"1"), (b"GNU.sparse.map", b"0,0," * 9_999 + b"0,0")) + block(b"f")],
        gives={"f": "f \\x00"},
    ),
    # --- numbers
    recipe("size-of-eight-exabytes", [block(b"f", size=b"\x80\0\0\0\x7f" + b"\xff" * 7)], gives=LAYER),
    recipe(
        "size-of-more-than-64-bits", [block(b"f", size=b"\x80\0\0\1" + bytes(8))], gives=tar_error("malformed number")
    ),
    recipe("size-below-nothing", [block(b"f", size=b"\xff" * 12)], gives=tar_error("malformed number")),
    recipe("size-of-minus-a-block", [block(b"f", size=b"\xff" * 10 + b"\xfe\0")], gives=tar_error("malformed number")),
    recipe("pax-size-of-all-bits", [pax((b"size", b"%d" % ((1 << 63) - 1))) + block(b"f")], gives=LAYER),
    recipe(
        "pax-size-of-one-bit-more",
        [pax((b"size", b"%d" % (1 << 63))) + block(b"f")],
        gives=tar_error("malformed number"),
    ),
    # --- trees
    recipe("path-of-256-components", [file("d/" * 255 + "f")], gives=over_limit("255 components", "d/d/d")),
    recipe("path-of-255-components", [file("d/" * 254 + "f")], gives={"d/" * 254 + "f": "f "}),
    recipe(
        "hardlink-target-of-256-components",
        [hardlink("h", "d/" * 255 + "f")],
        gives=over_limit("255 components", "'h'"),
    ),
    recipe(
        "links-to-a-path-of-256-components",
        [symlink("l", "d/" * 255)],
        [file("l/f")],
        gives=over_limit("255 components", "'l'"),
    ),
    recipe(
        "link-that-doubles-its-target",
        [symlink("a", "/".join(["b"] * 30)), *(symlink(chr(98 + n), "/".join([chr(99 + n)] * 30)) for n in range(20))],
        [file("a/x")],
        gives=over_limit("255 components", "'a'"),
    ),
    recipe(
        "deep-and-opaque",
        [folder("d/" * 200)],
        [opaque("d")] * 1 + [opaque("d/" * n + "d") for n in range(150)],
        gives={"d": "d"},
    ),
    recipe(
        "whiteouts-of-everything-twice",
        [file(f"f{n}") for n in range(500)],
        [whiteout(f"f{n}") for n in range(500)] * 2,
        gives={},
    ),
    recipe("one-path-a-thousand-times", [file("f", b"%d" % n) for n in range(1000)], gives={"f": "f 999"}),
    recipe(
        "a-thousand-names-of-one-inode",
        [file("f", b"1"), *(hardlink(f"h{n:03}", "f") for n in range(1000))],
        gives={"f": "f 1", **{f"h{n:03}": "= f" for n in range(1000)}},
    ),
    recipe(
        "file-and-directory-in-turn", [part for n in range(50) for part in (file("a"), folder("a"))], gives={"a": "d"}
    ),
    # --- attributes
    recipe(
        "attribute-of-more-than-64-KiB",
        [file("f", xattrs=((b"user.a", b"v" * 65_537),))],
        gives=over_limit("64 KiB", "'f'"),
    ),
    recipe(
        "attributes-of-64-KiB-together",
        [file("f", xattrs=tuple((b"user.%03d" % n, b"v" * 1000) for n in range(70)))],
        gives=over_limit("64 KiB", "'f'"),
    ),
    recipe(
        "attribute-name-of-more-than-255-bytes",
        [file("f", xattrs=((b"user." + b"n" * 251, b"v"),))],
        gives=layer_error("attribute", "'f'"),
    ),
    recipe(
        "symlink-target-of-a-megabyte",
        [symlink("l", "t" * 1_000_000)],
        gives=layer_error("longer than 4095 bytes", "'l'"),
    ),
]
