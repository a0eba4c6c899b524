"""Text tables."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]], names: int) -> str:
    """Format a table with a line below its header.

    Args:
        cells: rows of cells; the first row is the header.
        names: number of leading text columns; the others hold numbers.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        texts = (cell.ljust(width) for cell, width in zip(line[:names], widths, strict=False))
        numbers = (cell.rjust(width) for cell, width in zip(line[names:], widths[names:], strict=True))
        lines.append("  ".join((*texts, *numbers)))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def times(ratio: float | None) -> str:
    """Format a ratio, or ``-`` without one."""
    return "-" if ratio is None else f"{ratio:.2f}x"
