"""Tar archives as read by GNU tar and Python's tarfile."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from dataclasses import dataclass

from fastpull.layers.entry import EntryType
from tests.support.engines import Scanned


@dataclass(frozen=True)
class TarMember:
    """A member, with the attributes that readers have to agree on.

    Attributes:
        path: normalized path, without leading, trailing and double slashes, and dots.
        type: type of the member.
        link: link target; normalized for hard links.
        content: content of a file, including holes.
    """

    path: bytes
    type: EntryType
    link: bytes = b""
    content: bytes = b""

    def __str__(self) -> str:
        link = f" -> {self.link!r}" if self.link else ""
        content = f" {len(self.content)} bytes" if self.type is EntryType.FILE else ""
        return f"{self.type.name.lower()} {self.path!r}{link}{content}"


class ReaderRefused(Exception):
    """The reader refused the archive."""


def by_scanner(found: Scanned) -> list[TarMember]:
    """Return the members that a scanner of fastpull found."""
    return [
        TarMember(entry.path, entry.type, entry.linkname, found.contents.get(number, b""))
        for number, entry in enumerate(found.index)
    ]


def by_tarfile(data: bytes) -> list[TarMember]:
    """Read with Python's library; the list ends where the library stops silently.

    Raises:
        ReaderRefused: The library raised an error.
    """
    types = {
        tarfile.LNKTYPE: EntryType.HARDLINK,
        tarfile.SYMTYPE: EntryType.SYMLINK,
        tarfile.CHRTYPE: EntryType.CHAR,
        tarfile.BLKTYPE: EntryType.BLOCK,
        tarfile.DIRTYPE: EntryType.DIRECTORY,
        tarfile.FIFOTYPE: EntryType.FIFO,
    }
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                kind = types.get(member.type, EntryType.FILE)
                path, link = (text.encode("utf-8", "surrogateescape") for text in (member.name, member.linkname))
                content = b""
                if kind is EntryType.FILE:
                    content = tar.extractfile(member).read()  # type: ignore[union-attr]
                found.append(_member(path, kind, link, content))
    except Exception as error:
        raise ReaderRefused(repr(error)) from error
    return found


_BORDER = b"3f9a51c07be24d68"  # a prefix of each line, which separates it from file contents
_LINE = re.compile(
    rb'(?P<type>[-a-zA-Z])[-a-zA-Z]{9} \S+ +(?P<size>\d+|\d+,\d+) \S+ \S+ +"%b(?P<path>(?:[^"\\]|\\.)*)"/?'
    rb'(?: (?:->|link to) "(?P<link>(?:[^"\\]|\\.)*)")?\n' % _BORDER
)
_OPTIONS = (
    "--extract",
    "--to-stdout",
    *("--verbose", "--verbose", "--numeric-owner", "--quoting-style=c", "--full-time", "--warning=none"),
    "--absolute-names",  # no file is written; without this option, `..` in a name is an error
    *("--show-transformed-names", f"--transform=s,^,{_BORDER.decode()},rSH"),
)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_LETTERS = {
    b"-": EntryType.FILE,
    b"C": EntryType.FILE,
    b"h": EntryType.HARDLINK,
    b"l": EntryType.SYMLINK,
    b"c": EntryType.CHAR,
    b"b": EntryType.BLOCK,
    b"d": EntryType.DIRECTORY,
    b"p": EntryType.FIFO,
}


def by_gnu_tar(data: bytes) -> list[TarMember]:
    """Read with GNU tar: one process prints each member's line before its content.

    Raises:
        ReaderRefused: GNU tar failed or printed a warning.
    """
    done = subprocess.run(
        ["tar", *_OPTIONS, "--file=-"],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"LC_ALL": "C", "TZ": "UTC", "PATH": "/bin:/usr/bin"},
        timeout=60,
        check=False,
    )
    lines = list(_LINE.finditer(done.stdout))
    starts, ends = [0, *(line.end() for line in lines)], [*(line.start() for line in lines), len(done.stdout)]
    before, *contents = (done.stdout[start:end] for start, end in zip(starts, ends, strict=True))
    if done.returncode or before:
        raise ReaderRefused((before or done.stdout)[-300:].decode(errors="replace"))
    found = []
    for line, content in zip(lines, contents, strict=True):
        kind = _LETTERS.get(line["type"])
        size = int(line["size"]) if kind is EntryType.FILE else 0
        if kind is None or len(content) > size:
            raise ReaderRefused((line[0] + content)[:300].decode(errors="replace"))
        whole = content.ljust(size, b"\0")  # holes at the end are not written
        found.append(_member(_unquoted(line["path"]), kind, _unquoted(line["link"] or b""), whole))
    return found


def _unquoted(text: bytes) -> bytes:
    def meant(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if code.isdigit() else _ESCAPES.get(code, code)

    return _ESCAPE.sub(meant, text)


def _member(path: bytes, kind: EntryType, link: bytes, content: bytes) -> TarMember:
    if kind is EntryType.HARDLINK:
        link = _place(link)
    elif kind is not EntryType.SYMLINK:
        link = b""
    return TarMember(_place(path), kind, link, content)


def _place(path: bytes) -> bytes:
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)
