"""Dangerous, impossible or inappropriate owners, modes, times, devices and extended attributes."""

from __future__ import annotations

import struct

from tests.hostile.recipe import recipe, tar_error
from tests.support.headers import block, pax
from tests.support.layers import Member, device, fifo, file, folder, hardlink, symlink

CAPABILITY = struct.pack("<5I", 0x2000001, 1 << 10, 0, 0, 0)
ID = tar_error("owner or group id out of range", "f")
DEVICE = tar_error("device number out of range", "n")
NUMBER = tar_error("malformed number in header")
RECORD = tar_error("malformed pax record")


def tagged(name: bytes, value: bytes = b"y") -> list[Member]:
    return [file("f", b"1", xattrs=((name, value),))]


RECIPES = [
    # --- owners
    recipe("owner-of-minus-one", [block(b"f", uid=b"\xff" * 8)], gives=ID),
    recipe("owner-of-all-bits", [pax((b"uid", b"4294967295")) + block(b"f")], gives=ID),
    recipe("group-of-all-bits", [pax((b"gid", b"4294967295")) + block(b"f")], gives=ID),
    recipe("owner-that-wraps-to-root", [pax((b"uid", b"4294967296")) + block(b"f")], gives=ID),
    recipe("owner-in-base-256-that-wraps", [block(b"f", uid=b"\x80\0\0\1\0\0\0\0")], gives=ID),
    recipe(
        "owner-as-large-as-can-be",
        [file("f", uid=(1 << 32) - 2, gid=(1 << 32) - 2)],
        gives={"f": "f  [uid=4294967294 gid=4294967294]"},
    ),
    recipe("owner-below-nothing", [pax((b"uid", b"-1")) + block(b"f")], gives=RECORD),
    recipe(
        "owner-by-name",
        [pax((b"uname", b"root"), (b"gname", b"root"), (b"uid", b"7")) + block(b"f")],
        gives={"f": "f  [uid=7]"},
    ),
    recipe("owner-that-is-no-number", [block(b"f", uid=b"root\0\0\0\0")], gives=NUMBER),
    # --- modes
    recipe("setuid-of-root", [file("su", b"1", mode=0o4755)], gives={"su": "f 1 [4755]"}),
    recipe(
        "setuid-survives-its-owner",
        [file("su", b"1", mode=0o6755, uid=5, gid=6)],
        gives={"su": "f 1 [6755 uid=5 gid=6]"},
    ),
    recipe(
        "setgid-directory-hands-nothing-down",
        [folder("d", 0o2775, gid=5), file("d/f"), file("d/e/f")],
        gives={"d": "d [2775 gid=5]", "d/f": "f ", "d/e": "d", "d/e/f": "f "},
        split={"d": "d [2775 gid=5]", "d/f": "f ", "d/e": "d", "d/e/f": "f "},
    ),
    recipe("sticky-directory", [folder("tmp", 0o1777)], gives={"tmp": "d [1777]"}),
    recipe("mode-with-the-bits-of-a-type", [block(b"f", mode=b"0120777\0")], gives={"f": "f  [777]"}),
    recipe("mode-below-nothing", [block(b"f", mode=b"\xff" * 8)], gives={"f": "f  [7777]"}),
    recipe("mode-that-is-no-number", [block(b"f", mode=b"rwxr-xr-")], gives=NUMBER),
    recipe(
        "directory-without-permissions",
        [folder("d", 0), file("d/e/f", b"1"), file("d/g")],
        gives={"d": "d [0]", "d/e/f": "f 1", "d/g": "f "},
        split={"d": "d [0]", "d/e/f": "f 1", "d/g": "f "},
    ),
    recipe(
        "file-without-permissions",
        [file("f", b"1", mode=0), hardlink("h", "f")],
        gives={"f": "f 1 [0]", "h": "= f"},
        split={"f": "f 1 [0]", "h": "= f"},
    ),
    recipe(
        "root-without-permissions",
        [folder("", 0), file("f", b"1")],
        gives={"": "d [0]", "f": "f 1"},
        split={"": "d [0]", "f": "f 1"},
    ),
    recipe(
        "symlink-with-a-mode",
        [block(b"l", b"2", link=b"t", mode=b"0000000\0")],
        gives={"l": "l t"},
    ),
    recipe(
        "setuid-symlink",
        [block(b"l", b"2", link=b"t", mode=b"0006777\0", uid=b"0000005\0")],
        gives={"l": "l t [uid=5]"},
    ),
    # --- devices and fifos
    recipe("device-major-out-of-range", [block(b"n", b"3", devices=b"0010000\x000000000\0")], gives=DEVICE),
    recipe("device-minor-out-of-range", [block(b"n", b"4", devices=b"0000000\x004000000\0")], gives=DEVICE),
    recipe("device-below-nothing", [block(b"n", b"3", devices=b"\xff" * 16)], gives=DEVICE),
    recipe(
        "device-that-is-no-number",
        [block(b"n", b"3", devices=b"null\0\0\0\x000000000\0")],
        gives=tar_error("malformed number", "n"),
    ),
    recipe("device-as-large-as-can-be", [device("n", 0xFFF, 0xFFFFF)], gives={"n": "c 4095:1048575"}),
    recipe(
        "disk-of-the-host",
        [block(b"sda", b"4", mode=b"0000666\0", devices=b"0000010\x000000000\0")],
        gives={"sda": "b 8:0 [666]"},
    ),
    recipe("memory-of-the-host", [device("dev/mem", 1, 1, mode=0o666)], gives={"dev/mem": "c 1:1 [666]"}),
    recipe("terminal-of-the-host", [device("tty", 5, 0, mode=0o4666, uid=5)], gives={"tty": "c 5:0 [4666 uid=5]"}),
    recipe("fifo-without-writers", [fifo("p", mode=0o4666, uid=5)], gives={"p": "p [4666 uid=5]"}),
    recipe("file-over-a-fifo", [fifo("p"), file("p", b"1")], gives={"p": "f 1"}, split={"p": "f 1"}),
    recipe(
        "file-over-a-device", [device("zero", 1, 5), file("zero", b"1")], gives={"zero": "f 1"}, split={"zero": "f 1"}
    ),
    recipe("device-numbers-of-a-file", [block(b"f", devices=b"\xff" * 16)], gives={"f": "f "}),
    # --- times
    recipe("time-before-the-epoch", [file("f", mtime=-1)], gives={"f": "f  [mtime=-1]"}),
    recipe("time-before-all", [file("f", mtime=-(1 << 63) + 1)], gives={"f": f"f  [mtime={-(1 << 63) + 1}]"}),
    recipe("time-after-all", [file("f", mtime=(1 << 63) - 1)], gives={"f": f"f  [mtime={(1 << 63) - 1}]"}),
    recipe(
        "time-after-all-of-everything",
        [folder("d", mtime=(1 << 63) - 1), symlink("l", "t", mtime=(1 << 63) - 1), fifo("p", mtime=(1 << 63) - 1)],
        gives={
            "d": f"d [mtime={(1 << 63) - 1}]",
            "l": f"l t [mtime={(1 << 63) - 1}]",
            "p": f"p [mtime={(1 << 63) - 1}]",
        },
    ),
    recipe("time-that-overflows", [pax((b"mtime", b"9223372036854775808")) + block(b"f")], gives=NUMBER),
    recipe("time-that-is-no-number", [pax((b"mtime", b"NaN")) + block(b"f")], gives=RECORD),
    recipe("time-that-is-infinite", [pax((b"mtime", b"inf")) + block(b"f")], gives=RECORD),
    recipe("time-with-an-exponent", [pax((b"mtime", b"1e99")) + block(b"f")], gives=RECORD),
    recipe("time-with-two-signs", [pax((b"mtime", b"--1")) + block(b"f")], gives=RECORD),
    recipe(
        "time-with-many-digits-behind-the-point",
        [pax((b"mtime", b"5." + b"9" * 5000)) + block(b"f")],
        gives={"f": "f  [mtime=5]"},
    ),
    recipe(
        "time-in-the-middle-of-a-second-before-the-epoch",
        [pax((b"mtime", b"-0.5")) + block(b"f")],
        gives={"f": "f  [mtime=-1]"},
    ),
    recipe("time-in-base-256", [block(b"f", mtime=b"\xff" * 11 + b"\xfe")], gives={"f": "f  [mtime=-2]"}),
    recipe("times-other-than-the-mtime", [pax((b"atime", b"x"), (b"ctime", b"y")) + block(b"f")], gives={"f": "f "}),
    # --- extended attributes
    recipe("attribute-overlay-opaque", [folder("d", xattrs=((b"trusted.overlay.opaque", b"y"),))], gives={"d": "d"}),
    recipe(
        "attribute-overlay-redirect", [folder("d", xattrs=((b"trusted.overlay.redirect", b"/etc"),))], gives={"d": "d"}
    ),
    recipe("attribute-overlay-of-users", [folder("d", xattrs=((b"user.overlay.opaque", b"y"),))], gives={"d": "d"}),
    recipe("attribute-overlay-metacopy", tagged(b"trusted.overlay.metacopy"), gives={"f": "f 1"}),
    recipe("attribute-trusted", tagged(b"trusted.evil"), gives={"f": "f 1"}),
    recipe("attribute-selinux", tagged(b"security.selinux", b"unconfined_u\0"), gives={"f": "f 1"}),
    recipe("attribute-ima", tagged(b"security.ima"), gives={"f": "f 1"}),
    recipe("attribute-evm", tagged(b"security.evm"), gives={"f": "f 1"}),
    recipe("attribute-posix-acl", tagged(b"system.posix_acl_access", struct.pack("<I", 2)), gives={"f": "f 1"}),
    recipe("attribute-nfs-acl", tagged(b"system.nfs4_acl"), gives={"f": "f 1"}),
    recipe("attribute-of-no-namespace", tagged(b"evil"), gives={"f": "f 1"}),
    recipe("attribute-of-a-path", tagged(b"../../@canary@"), gives={"f": "f 1"}),
    recipe("attribute-of-users-without-a-name", tagged(b"user."), gives={"f": "f 1"}),
    recipe("attribute-of-security-without-a-name", tagged(b"security."), gives={"f": "f 1"}),
    recipe("attribute-of-nothing", [pax((b"SCHILY.xattr.", b"y")) + block(b"f")], gives=RECORD),
    recipe(
        "attribute-twice",
        [pax((b"SCHILY.xattr.user.a", b"1"), (b"SCHILY.xattr.user.a", b"2")) + block(b"f")],
        gives={"f": "f  [user.a=2]"},
    ),
    recipe(
        "attribute-taken-back",
        [pax((b"SCHILY.xattr.user.a", b"1"), (b"SCHILY.xattr.user.a", b"")) + block(b"f")],
        gives={"f": "f "},
    ),
    recipe("attribute-with-nuls", tagged(b"user.a", b"\0\0"), gives={"f": "f 1 [user.a=\\x00\\x00]"}),
    recipe("attribute-that-is-not-utf-8", tagged(b"user.\xff", b"y"), gives={"f": "f 1 [user.\\xff=y]"}),
    recipe(
        "attribute-of-a-symlink",
        [symlink("l", "/@canary@/file", xattrs=((b"user.a", b"y"),))],
        gives={"l": "l /@canary@/file"},
    ),
    recipe("attribute-of-a-fifo", [fifo("p", xattrs=((b"user.a", b"y"),))], gives={"p": "p"}),
    recipe("attribute-of-the-root", [folder("", xattrs=((b"user.a", b"y"),))], gives={"": "d [user.a=y]"}),
    recipe(
        "attribute-of-a-read-only-file",
        [file("f", b"1", mode=0o400, xattrs=((b"user.a", b"y"),))],
        gives={"f": "f 1 [400 user.a=y]"},
    ),
    recipe(
        "capability",
        tagged(b"security.capability", CAPABILITY),
        gives={"f": f"f 1 [security.capability={CAPABILITY!r}]"},
    ),
    recipe("capability-that-the-kernel-refuses", tagged(b"security.capability", b"evil"), gives={"f": "f 1"}),
    recipe(
        "capability-survives-its-owner",
        [file("f", b"1", uid=5, xattrs=((b"security.capability", CAPABILITY),))],
        gives={"f": f"f 1 [uid=5 security.capability={CAPABILITY!r}]"},
    ),
    recipe(
        "capability-of-a-symlink",
        [symlink("l", "/@canary@/file", xattrs=((b"security.capability", CAPABILITY),))],
        gives={"l": "l /@canary@/file"},
    ),
]
