"""Random tar archives with every known kind of header, valid or not.

All choices come from one random source, so that a campaign repeats them from a seed and hypothesis shrinks them.
"""

from __future__ import annotations

import random

from fastpull.layers.archive import padded
from tests.support.headers import END, block, extended, pax, record

_NAMES = (b"a", b"b", b"d/", b"d/e", b"d/e/f", b"./a", b"x" * 99, b"y" * 60 + b"/" + b"z" * 60, b"caf\xc3\xa9", b"s p")
_ODD_NAMES = (
    b"/abs",
    b"../up",
    b"d/../a",
    b".",
    b"./",
    b"",
    b"\xff\xfe",
    b"n" * 256,
    b"a//b",
    b"a\nb",
    b"p" * 120 + b"/q/",
)
_MAGICS = (b"ustar\x0000", b"ustar  \0", bytes(8))
_SIZES = (0, 0, 1, 3, 511, 512, 513, 1500)
_PIECES = ((0, 512), (1000, 512), (2000, 0), (3000, 512), (4096, 1024), (8000, 7))
_ODD_PIECES = ((0, 5), (1000, 512), (3000, 7), (4096, 600))


def random_archive(choose: random.Random, odd: float) -> bytes:
    """Return an archive of a few members.

    Args:
        choose: source of all choices.
        odd: probability of each choice that a valid writer does not make; 0 for a valid archive.
    """
    maker = _Maker(choose, odd)
    data = b"".join(maker.member() for _ in range(choose.randrange(1, 5))) + maker.end()
    return maker.damaged(data) if maker.is_odd() else data


class _Maker:
    def __init__(self, choose: random.Random, odd: float) -> None:
        self._choose = choose
        self._odd = odd

    def is_odd(self) -> bool:
        return self._odd > 0 and self._choose.random() < self._odd

    def one_of(self, usual: tuple[bytes, ...], odd: tuple[bytes, ...]) -> bytes:
        return self._choose.choice(odd if self.is_odd() else usual)

    def content(self, size: int) -> bytes:
        return bytes(self._choose.choice((self._choose.randrange(1, 256), 65)) for _ in range(min(size, 16))).ljust(
            size, b"+"
        )

    def number(self, value: int, width: int) -> bytes:
        """Return a number in one of its header encodings."""
        octal = b"%o" % value
        usual = [
            octal.rjust(width - 1, b"0") + b"\0",
            octal.rjust(width - 1) + b" ",
            octal.rjust(width - 1, b"0") + b" ",
        ]
        usual.append(b"\x80" + value.to_bytes(width - 1, "big"))
        odd = (
            octal.ljust(width, b"\0"),
            octal.rjust(width, b"0"),
            octal.ljust(width),
            b"\xff" * width,
            b"\x80" + b"\x7f" * (width - 1),
            b"-" + octal.rjust(width - 2, b"0") + b"\0",
            b"0x" + octal.rjust(width - 3, b"0") + b"\0",
            b"+" + octal.rjust(width - 2, b"0") + b"\0",
            bytes(width),
            b" " * width,
            octal.rjust(width - 3, b"0") + b"\0 9",
            b"\0" + octal.rjust(width - 2, b"0") + b"\0",
        )
        return self.one_of(tuple(usual), odd)[:width]

    def member(self) -> bytes:
        choose = self._choose
        if choose.random() < 0.15:
            return self.sparse()
        name = self.one_of(_NAMES, _ODD_NAMES)
        flag = self.one_of(
            (b"0", b"0", b"0", b"\0", b"5", b"1", b"2", b"3", b"4", b"6", b"7"),
            (b"V", b"M", b"Z", b"D", b"S", b"N", b"X"),
        )
        magic = self.one_of(_MAGICS, (b"ustar\0\0\0", b"evil\0\0\0\0", b"ustar \0\0"))
        if flag in (b"0", b"7", b"1", b"2", b"3", b"4", b"6") and not self.is_odd():
            name = name.rstrip(b"/") or b"f"
        if flag == b"5" and not self.is_odd():
            name = name.rstrip(b"/") + b"/"
        link = (
            self.one_of((b"a", b"d/e", b"l" * 120), (b"", b"/etc/passwd", b"../../x", b"t/"))
            if flag in (b"1", b"2")
            else b""
        )
        is_file = flag in (b"0", b"7") or (flag == b"\0" and not name.endswith(b"/"))
        content = self.content(choose.choice(_SIZES)) if is_file or self.is_odd() else b""
        records = self.records(name, len(content)) if choose.random() < 0.3 else []
        before, name, link, prefix = self.names(name, link, magic, records)
        size = len(content)
        if records and any(key == b"size" for key, _ in records) and choose.random() < 0.5:
            size = 0 if self.is_odd() else size
        header = block(
            name[:100],
            flag,
            self.number(size, 12),
            mode=self.number(choose.choice((0o644, 0o755, 0o4711, 0o100644)), 8),
            uid=self.number(choose.choice((0, 1000, 0o7777777)), 8),
            gid=self.number(choose.choice((0, 5)), 8),
            mtime=self.number(choose.choice((0, 1, 1_700_000_000)), 12),
            link=link[:100],
            magic=magic,
            devices=(self.number(choose.choice((1, 7, 255)), 8) + self.number(choose.choice((3, 0, 65536)), 8))
            if magic[:5] == b"ustar"
            else bytes(16),
            prefix=prefix,
        )
        return self.global_header() + before + self.local(records) + self.checked(header) + padded(content)

    def names(
        self, name: bytes, link: bytes, magic: bytes, records: list[tuple[bytes, bytes]]
    ) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the extension headers of the names, and name, link and prefix of the header itself."""
        choose, before, prefix = self._choose, [], b""
        if len(name) > 100 or choose.random() < 0.15:
            cut = name.find(b"/", max(0, len(name) - 101), 155)
            if magic == _MAGICS[0] and 0 < cut < len(name) - 1 and choose.random() < 0.4:
                prefix, name = name[:cut], name[cut + 1 :]
            else:
                before.append(self.long(name or b"e", b"L", b"path", records))
        if len(link) > 100:
            before.append(self.long(link, b"K", b"linkpath", records))
        if self.is_odd():
            before.append(self.long(choose.choice((name, b"other", b"a")), b"L", b"path", records))
        choose.shuffle(before)
        return b"".join(before), name, link, prefix

    def long(self, text: bytes, flag: bytes, key: bytes, records: list[tuple[bytes, bytes]]) -> bytes:
        """Return a long name as a GNU header or a pax record."""
        if self._choose.random() < 0.5:
            if self.is_odd():
                return pax((key, text))
            records.append((key, text))
            return b""
        return extended(text + self.one_of((b"\0",), (b"", b"\0\0\0", b"\0evil\0", b"\0" * 600)), flag)

    def records(self, name: bytes, size: int) -> list[tuple[bytes, bytes]]:
        found = [self.pax_record(name, size) for _ in range(self._choose.randrange(1, 4))]
        if not self.is_odd():  # each name once, and none of another header
            found = [pair for pair in dict(found).items() if pair[0] != b"path"]
        return found

    def pax_record(self, name: bytes, size: int) -> tuple[bytes, bytes]:
        return self._choose.choice(
            [
                (b"path", self.one_of((name or b"r", b"pax-name"), (b"", b"a/", b"../p", b"q\0r"))),
                (
                    b"uid",
                    self.one_of((b"0", b"77", b"4294967294"), (b"", b"-1", b"4294967295", b"9" * 30, b"x")),
                ),
                (
                    b"mtime",
                    self.one_of((b"5", b"5.75", b"1700000000.123456789"), (b"", b"-5.5", b"nan", b".5")),
                ),
                (b"size", self.one_of((b"%d" % size,), (b"", b"0", b"1", b"512", b"1024", b"-1", b"9" * 20))),
                (b"SCHILY.xattr.user.k", self.one_of((b"v", b"v\0w\n"), (b"",))),
                (b"comment", b"c"),
                (b"uname", b"root"),
                (b"hdrcharset", self.one_of((b"ISO-IR 10646 2000 UTF-8",), (b"BINARY",))),
                (b"linkpath", self._choose.choice((b"", b"a", b"other"))) if self.is_odd() else (b"comment", b"l"),
            ]
        )

    def local(self, records: list[tuple[bytes, bytes]]) -> bytes:
        if not records:
            return b""
        body = b"".join(record(*pair) for pair in records)
        if self.is_odd():
            body += self._choose.choice(
                (b"\0" * 8, b"12 junk", b"9 path=x", b"\n", b"5 a=\n", b" 10 path=x\n", b"010 path=x\n")
            )
        return extended(body)

    def global_header(self) -> bytes:
        if self._choose.random() < 0.92:
            return b""
        usual = (record(b"comment", b"c" * 40), record(b"uid", b"9"), record(b"mtime", b"12"))
        odd = (
            record(b"path", b"g"),
            record(b"size", b"512"),
            record(b"linkpath", b"g"),
            b"junk",
            record(b"uid", b""),
            b"",
        )
        return extended(self.one_of(usual, odd), b"g")

    def sparse(self) -> bytes:
        """Return a sparse file in one of the four encodings."""
        choose = self._choose
        pairs = sorted(choose.sample(_ODD_PIECES if self.is_odd() else _PIECES, choose.randrange(1, 4)))
        real = 8192 if choose.random() < 0.7 else pairs[-1][0] + pairs[-1][1]
        if self.is_odd():
            pairs = choose.choice((pairs[::-1], [*pairs, (4000, 600)], [(0, 9000)], []))
        stored = b"".join(self.content(length) for _, length in pairs)
        if self.is_odd():
            stored += b"more"
        form = choose.choice(("old", "0.0", "0.1", "1.0"))
        if form == "old":
            items = b"".join(b"%011o\0%011o\0" % pair for pair in pairs[:4]).ljust(96, b"\0")
            tail = items + b"\0" + b"%011o\0" % real + bytes(17)
            return self.checked(block(b"sparse", b"S", len(stored), magic=b"ustar  \0", tail=tail)) + padded(stored)
        if form == "1.0":
            lines = b"%d\n" % len(pairs) + b"".join(b"%d\n%d\n" % pair for pair in pairs)
            stored = padded(lines) + stored
            records = [(b"major", b"1"), (b"minor", b"0"), (b"name", b"sparse"), (b"realsize", b"%d" % real)]
        else:
            records = [(b"size", b"%d" % real), (b"numblocks", b"%d" % len(pairs))]
            if form == "0.0":
                for offset, length in pairs:
                    records += [(b"offset", b"%d" % offset), (b"numbytes", b"%d" % length)]
            else:
                records += [(b"name", b"sparse"), (b"map", b",".join(b"%d,%d" % pair for pair in pairs))]
        if self.is_odd():
            records.pop(choose.randrange(len(records)))
        named = b"sparse" if form == "0.0" else b"GNUSparseFile.1/sparse"
        header = block(named, self.one_of((b"0",), (b"5", b"S", b"2")), len(stored))
        return pax(*((b"GNU.sparse." + key, value) for key, value in records)) + header + padded(stored)

    def checked(self, header: bytes) -> bytes:
        """Return the header with its checksum in one of its encodings."""
        zeroed = header[:148] + b" " * 8 + header[156:]
        total = sum(zeroed)
        signed = sum(byte - 256 if byte > 127 else byte for byte in zeroed)
        usual = (
            b"%06o\0 " % total,
            b"%07o\0" % total,
            b"%6o\0 " % total,
            b"%06o\0 " % (signed if signed > 0 else total),
        )
        odd = (b"%06o\0 " % (total + 1), bytes(8), b"%o" % total + bytes(8), b"%08o" % total, b" " * 8)
        return header[:148] + self.one_of(usual, odd)[:8] + header[156:]

    def end(self) -> bytes:
        again = block(b"again", size=3) + padded(b"abc")
        return self.one_of(
            (END, END, END + bytes(8192), b""),
            (
                bytes(512),
                bytes(512) + again + END,
                END + again + END,
                END + b"junk",
                bytes(600),
                END + bytes(100),
                again[:700],
                block(b"x", b"L", 5),
            ),
        )

    def damaged(self, data: bytes) -> bytes:
        """Return the archive with one or two changed bytes, mostly with a corrected header checksum."""
        changed, choose = bytearray(data), self._choose
        for _ in range(choose.randrange(1, 3)):
            start = choose.randrange(len(changed)) // 512 * 512
            at = start + choose.choice((0, 99, 100, 124, 135, 156, 157, 257, 263, 345, choose.randrange(512)))
            if at >= len(changed):
                continue
            was_header = data[start + 257 : start + 262] == b"ustar"
            changed[at] = choose.choice((0, 32, 47, 48, 49, 53, 55, 120, 128, 255, choose.randrange(256)))
            if was_header and len(changed) >= start + 512 and choose.random() < 0.9:
                header = changed[start : start + 512]
                changed[start + 148 : start + 156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
        if choose.random() < 0.2:
            del changed[choose.randrange(len(changed)) :]
        return bytes(changed)
