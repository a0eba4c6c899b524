"""Lines of a progress display, cut to the columns and rows of a terminal. Pure functions."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastpull.cli.words import size_of
from fastpull.errors import printable

if TYPE_CHECKING:
    from fastpull.cli.tracker import ProgressRow, Total

_MAX_ROWS = 24
_MAX_NAME = 48
_UNKNOWN = "-:--"


def cell_width(text: str) -> int:
    """Return the columns that printable text takes on a terminal."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    """Return text that takes no more than a number of columns; what is cut off is shown as ``~``."""
    if cell_width(text) <= width:
        return text
    kept, room = "", max(0, width - 1)
    for c in text:
        room -= cell_width(c)
        if room < 0:
            break
        kept += c
    return kept + "~" if width > 0 else ""


def duration(seconds: float | None) -> str:
    """Return a time span as ``0:05`` or ``1:02:03``; ``-:--`` if it is unknown or longer than four days."""
    if seconds is None or seconds >= 100 * 3600:
        return _UNKNOWN
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def part_of(part: int, whole: int) -> str:
    """Return two sizes in the unit of the whole: ``30.3 of 752.3 MiB``."""
    shown = size_of(whole)
    number = shown.split()[0]
    scale = whole / float(number) if float(number) else 1
    return f"{part / scale:.{1 if '.' in number else 0}f} of {shown}" if part < whole else f"{number} of {shown}"


def percent(part: int, whole: int) -> str:
    """Return a part in percent, 100 % only if nothing is missing."""
    return f"{min(100, 100 * part // whole) if whole > 0 else 100}%"


def bar(row: ProgressRow, width: int) -> str:
    """Return a bar: ``#`` is verified or unpacked, ``=`` is downloaded, ``-`` is still to come."""
    if row.size <= 0:
        return "#" * width if row.is_done else "-" * width
    read = min(width, width * row.read // row.size)
    present = max(read, min(width, width * row.present // row.size))
    return "#" * read + "=" * (present - read) + "-" * (width - present)


def total_line(total: Total, width: int | None = None) -> str:
    """Return the line on all of the work: as much of it as fits, or all of it."""
    share, sizes = percent(total.read, total.size), part_of(total.read, total.size)
    rate, left = f"{size_of(total.rate)}/s", f"{duration(total.left_seconds)} left"
    if total.phase and total.read >= total.size:
        rate, left = "", total.phase
    amounts = f"{sizes} {total.verb}"
    if total.downloaded and total.verb in ("unpacked", "verified"):
        amounts = f"{size_of(total.downloaded)} downloaded, {amounts}"
    title = cut(printable(total.title), _MAX_NAME)
    forms = [
        (title, share, amounts, rate, left),
        (share, amounts, rate, left),
        (share, sizes, rate, left),
        (share, sizes, left),
        (share, left),
        (share,),
    ]
    return _first_that_fits(("  ".join(filter(None, form)) for form in forms), width)


def row_line(row: ProgressRow, name_width: int, verb: str, width: int) -> str:
    """Return the line on one row, as much of it as fits."""
    name = cut(printable(row.name), name_width)
    name += " " * (name_width - cell_width(name))
    share = f"{percent(row.read, row.size):>4}"
    sizes = part_of(row.read, row.size)
    present = f"{size_of(row.present)} here, {sizes} {verb}" if row.is_active and row.present < row.size else sizes
    forms = [
        f"  {name} [{bar(row, 24)}]  {present}  {row.word}",
        f"  {name} [{bar(row, 24)}]  {sizes}  {row.word}",
        f"  {name} [{bar(row, 10)}]  {share}  {row.word}",
        f"{name} [{bar(row, 10)}] {share}",
        f"{name} {share}",
    ]
    return _first_that_fits(forms, width)


def lines(total: Total, rows: list[ProgressRow], width: int, height: int) -> list[str]:
    """Return the lines of a display.

    Rows that do not fit are told in one line: those that are done first, then those that wait.

    Args:
        total: of all the work.
        rows: in their order.
        width: columns that a line may take.
        height: lines that there may be.
    """
    if height <= 0 or not rows:
        return []
    room = min(height - 1, _MAX_ROWS)
    shown = list(range(len(rows)))
    if len(rows) > room:
        by_use = sorted(shown, key=lambda number: (not rows[number].is_active, rows[number].is_done))
        shown = sorted(by_use[: max(0, room - 1)])
    name_width = min(max((cell_width(printable(rows[number].name)) for number in shown), default=0), _MAX_NAME)
    name_width = min(name_width, max(12, width // 3))
    found = [total_line(total, width)]
    found += [row_line(rows[number], name_width, total.verb, width) for number in shown]
    if len(shown) < len(rows) and room > 0:
        kept = set(shown)
        found.append(cut(_collapsed([row for number, row in enumerate(rows) if number not in kept]), width))
    return found


def _collapsed(rows: list[ProgressRow]) -> str:
    done = sum(row.is_done for row in rows)
    active = sum(row.is_active for row in rows)
    counts = {"done": done, "under way": active, "waiting": len(rows) - done - active}
    return f"  and {len(rows)} more: {', '.join(f'{count} {word}' for word, count in counts.items() if count)}"


def _first_that_fits(forms: Iterable[str], width: int | None) -> str:
    form = ""
    for form in forms:
        if width is None or cell_width(form) <= width:
            return form
    return cut(form, width or 0)
