"""What other programs read in a tar archive: GNU tar, and Python's tarfile."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from dataclasses import dataclass

from fastpull.layers.entry import EntryType
from tests.support.engines import Scanned


@dataclass(frozen=True)
class Member:
    """One member, as far as readers have to agree.

    Attributes:
        path: without what does not tell places apart: leading, trailing and double slashes, and dots.
        type: what it is.
        link: a target, of a hard link in the form of ``path``.
        content: of a file, holes included.
    """

    path: bytes
    type: EntryType
    link: bytes = b""
    content: bytes = b""

    def __str__(self) -> str:
        link = f" -> {self.link!r}" if self.link else ""
        content = f" {len(self.content)} bytes" if self.type is EntryType.FILE else ""
        return f"{self.type.name.lower()} {self.path!r}{link}{content}"


class Refused(Exception):
    """The reader says that the archive is no good."""


def by_scanner(found: Scanned) -> list[Member]:
    """What a scanner of ours made of it."""
    return [
        Member(entry.path, entry.type, entry.linkname, found.contents.get(number, b""))
        for number, entry in enumerate(found.index)
    ]


def by_tarfile(data: bytes) -> list[Member]:
    """Reads with Python's library; where it stops without a word, so does the list.

    Raises:
        Refused: it raises an error, of whatever kind.
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
        raise Refused(repr(error)) from error
    return found


_LINE = re.compile(
    rb'(?P<type>[-a-zA-Z])[-a-zA-Z]{9} \S+ +(?P<size>\d+|\d+,\d+) \S+ \S+ +(?P<path>"(?:[^"\\]|\\.)*")'
    rb'(?: (?:->|link to) (?P<link>"(?:[^"\\]|\\.)*"))?'
)
_BORDER = b"3f9a51c07be24d68"  # between the contents of files
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


def by_gnu_tar(data: bytes) -> list[Member]:
    """Reads with GNU tar, its list for what there is, its extraction for what is in it.

    Raises:
        Refused: it ends with an error.
    """
    listing = _tar(data, "--list", "--verbose", "--numeric-owner", "--quoting-style=c", "--full-time")
    contents = _tar(data, "--extract", f"--to-command=cat; printf %s {_BORDER.decode()}").split(_BORDER)
    found = []
    for line in listing.splitlines():
        match = _LINE.fullmatch(line)
        kind = _LETTERS.get(match["type"]) if match else None
        if match is None or kind is None:
            raise Refused(line.decode(errors="replace"))
        content = contents.pop(0) if kind is EntryType.FILE else b""
        if kind is EntryType.FILE:
            content = content.ljust(int(match["size"]), b"\0")  # a hole at the end is not written to a pipe
        found.append(_member(_unquoted(match["path"]), kind, _unquoted(match["link"] or b'""'), content))
    assert contents == [b""], "GNU tar extracts what it does not list"
    return found


def _tar(data: bytes, *options: str) -> bytes:
    command = ["tar", *options, "--file=-"]
    done = subprocess.run(
        command,
        input=data,
        capture_output=True,
        env={"LC_ALL": "C", "TZ": "UTC", "PATH": "/bin:/usr/bin"},
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise Refused(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _unquoted(text: bytes) -> bytes:
    def meant(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if code.isdigit() else _ESCAPES.get(code, code)

    return _ESCAPE.sub(meant, text[1:-1])


def _member(path: bytes, kind: EntryType, link: bytes, content: bytes) -> Member:
    if kind is EntryType.HARDLINK:
        link = _place(link)
    elif kind is not EntryType.SYMLINK:
        link = b""
    return Member(_place(path), kind, link, content)


def _place(path: bytes) -> bytes:
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)
