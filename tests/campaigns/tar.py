"""Random archives, read by both scanners, GNU tar and Python's tarfile, which have to agree or refuse."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from fastpull.layers.entry import EntryType
from tests.campaigns.campaign import Campaign, Missed
from tests.support.archives import random_archive
from tests.support.engines import NATIVE, REFERENCE, scan
from tests.support.tarreaders import ReaderRefused, TarMember, by_gnu_tar, by_scanner, by_tarfile

_ODDITIES = (0.0, 0.0, 0.03, 0.1)
_MAX_SIZE = 1 << 24  # of a file including its holes, which the other readers write out


class TarSubject(Campaign):
    """Assert that accepted archives match the other readers, and that no valid archive is refused."""

    name = "tar"
    trials = 20_000
    at_once = 2  # one trial scans here while the other waits for GNU tar

    async def prepare(self, folder: Path) -> None:
        pass

    async def trial(self, choose: random.Random, folder: Path) -> None:
        odd = choose.choice(_ODDITIES)
        data, chunk = random_archive(choose, odd), choose.randrange(1, 4000)
        self.report.counts[await asyncio.to_thread(verdict, data, chunk, is_sound=not odd)] += 1


def verdict(data: bytes, chunk: int, *, is_sound: bool) -> str:
    """Read an archive with all readers.

    Args:
        data: bytes of the archive.
        chunk: size of the chunks for the native scanner.
        is_sound: whether the archive is valid, so that no reader may refuse it.

    Returns:
        The outcome, for the report.

    Raises:
        AssertionError: The readers differ without a known reason; see `_reason`.
        Missed: A file is too large for a comparison.
    """
    native, reference = scan(NATIVE, data, chunk), scan(REFERENCE, data)
    assert native.verdict == reference.verdict, f"engines differ: {native.fault!r}, {reference.fault!r}"
    if native.fault:
        assert not is_sound, f"a valid archive is refused: {native.fault!r} at {native.offset}"
        return "refused"
    if native.index.sizes and max(native.index.sizes) > _MAX_SIZE:
        raise Missed
    ours, endings = by_scanner(native), []
    for name, read in (("GNU tar", by_gnu_tar), ("tarfile", by_tarfile)):
        try:
            theirs = read(data)
        except ReaderRefused as error:
            assert not is_sound, f"a valid archive is refused by {name}: {error}"
            endings.append(f"{name} refuses")
            continue
        if theirs == ours:
            endings.append(f"{name} agrees")
        else:
            reason = _reason(ours, theirs) if name == "tarfile" and endings == ["GNU tar agrees"] else None
            assert reason, f"got {_text(ours)}, expected as {name}: {_text(theirs)}"
            endings.append(f"{name} {reason}")
    assert any(ending.endswith("agrees") for ending in endings), f"no other reader agrees with: {_text(ours)}"
    return "accepted, " + ", ".join(endings)


def _reason(ours: Sequence[TarMember], theirs: Sequence[TarMember]) -> str | None:
    """Return the known reasons for a difference of tarfile alone, or None."""
    if len(ours) != len(theirs):
        return None
    reasons = set()
    for mine, other in zip(ours, theirs, strict=True):
        if mine.type is not other.type:
            if {mine.type, other.type} != {EntryType.FILE, EntryType.DIRECTORY}:
                return None
            reasons.add("takes the type of a v7 entry from the first 100 bytes of a long name")
        elif (mine.link, mine.content) != (other.link, other.content):
            return None
        if mine.path != other.path:
            if not other.path.endswith(b"/" + mine.path):
                return None
            reasons.add("takes a prefix from headers without the POSIX magic")
    return ", ".join(sorted(reasons)) or None


def _text(members: Sequence[TarMember]) -> str:
    return "; ".join(map(str, members)) or "nothing"
