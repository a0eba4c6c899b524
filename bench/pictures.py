"""Pictures of the results: ``python -m bench.pictures RESULTS.json FOLDER`` draws them as SVG.

The drawings are made of rectangles and text, and need no library. They are readable on a light and on a dark page.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from bench.limits import LimitStage

_WIDTH, _NAMES, _NUMBERS = 860, 230, 130
_BAR, _GAP, _HEAD = 18, 6, 34
_OURS, _OTHERS, _LIMIT = "#2a78c8", "#9aa4b1", "#d9822b"
COLOURS = ("#4e79a7", "#59a14f", "#f28e2b", "#76b7b2", "#e15759", "#b07aa1", "#edc948", "#9c755f", "#ff9da7", "#8c8c8c")


@dataclass(frozen=True, slots=True)
class PicturePart:
    """A part of a bar.

    Attributes:
        name: in the legend; empty for none.
        value: its length, in the picture's unit.
        colour: of CSS.
    """

    name: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of a picture.

    Attributes:
        name: before it; a heading if there are no parts.
        parts: one after the other.
        note: behind it.
    """

    name: str
    parts: tuple[PicturePart, ...] = ()
    note: str = ""

    @property
    def value(self) -> float:
        """The whole length."""
        return sum(part.value for part in self.parts)


def draw(title: str, bars: Sequence[Bar]) -> str:
    """Draws bars to one scale, with a legend for parts that have names.

    Args:
        title: above all.
        bars: from top to bottom.

    Returns:
        An SVG document.
    """
    legend = {part.name: part.colour for bar in bars for part in bar.parts if part.name}
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    scale = (_WIDTH - _NAMES - _NUMBERS) / longest
    lines = [text(8, 22, title, weight="bold")]
    x, y = 8.0, float(_HEAD)
    for name, colour in legend.items():
        if x + 30 + 7 * len(name) > _WIDTH:
            x, y = 8.0, y + _BAR
        lines += [_rectangle(x, y, 12, 12, colour), text(x + 17, y + 11, name)]
        x += 30 + 7 * len(name)
    y += _BAR + _GAP if legend else 0
    for bar in bars:
        if not bar.parts:
            lines.append(text(8, y + 13 + _GAP, bar.name, weight="bold"))
            y += _GAP
        else:
            lines.append(text(_NAMES - 8, y + 13, bar.name, anchor="end"))
            x = float(_NAMES)
            for part in bar.parts:
                lines.append(_rectangle(x, y, part.value * scale, _BAR, part.colour))
                x += part.value * scale
            lines.append(text(x + 6, y + 13, bar.note))
        y += _BAR + _GAP
    return document(title, _WIDTH, y + _GAP, lines)


def document(title: str, width: float, height: float, lines: Sequence[str]) -> str:
    """An SVG document of elements, for a light and for a dark page.

    Args:
        title: for those who do not see it.
        width: in pixels.
        height: likewise.
        lines: the elements.
    """
    size = f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}"'
    style = (
        "text{font-family:sans-serif;font-size:13px;fill:#1b1f24}@media(prefers-color-scheme:dark){text{fill:#e6e9ed}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>'
    return "\n".join((head, f"<style>{style}</style>", *lines, "</svg>\n"))


def bars_of_peers(rows: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]], place: str) -> list[Bar]:
    """A bar for each peer, by job, and one for the limit of each.

    Args:
        rows: as in the results' ``summary``.
        limits: as there.
        place: of the runs that are shown.
    """
    bars = []
    for comparison in dict.fromkeys(row["comparison"] for row in rows if row["place"] == place):
        bars.append(Bar(comparison))
        for limit in limits:
            if (limit["comparison"], limit["place"]) == (comparison, place):
                note = f"{limit['seconds']:.2f} s"
                bars.append(Bar("limit of the machine", (PicturePart("", limit["seconds"], _LIMIT),), note))
        for row in rows:
            if (row["comparison"], row["place"]) == (comparison, place):
                colour = _OURS if row["peer"].startswith("fastpull") else _OTHERS
                times = "" if row["to_first"] in (None, 1.0) else f" ({row['to_first']:.1f}x)"
                note = f"{row['wall_seconds']:.2f} s{times}"
                bars.append(Bar(row["peer"], (PicturePart("", row["wall_seconds"], colour),), note))
    return bars


def bars_of_stages(limits: Sequence[Mapping[str, Any]], place: str) -> list[Bar]:
    """A bar for each job, of the CPU seconds of its stages.

    Args:
        limits: as in the results.
        place: of those that are shown.
    """
    shown = [limit for limit in limits if limit["place"] == place]
    names = [stage for stage in LimitStage if any(stage in limit["stages"] for limit in shown)]
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    return [
        Bar(
            limit["comparison"],
            tuple(PicturePart(name, seconds, colours[name]) for name, seconds in limit["stages"].items()),
            f"{sum(limit['stages'].values()):.2f} CPU s",
        )
        for limit in shown
    ]


def write_pictures(results: Mapping[str, Any], folder: str, name: str) -> list[str]:
    """Draws all that there is to be shown, and returns the files' paths.

    Args:
        results: the document that a benchmark has written.
        folder: that exists.
        name: with which the files' names begin.
    """
    image, paths = os.path.basename(results["image"]["name"]), []
    for place in dict.fromkeys(row["place"] for row in results["summary"]):
        peers = bars_of_peers(results["summary"], results["limits"], place)
        stages = bars_of_stages(results["limits"], place)
        for subject, title, bars in (
            ("peers", f"{image} image, {place}: seconds, medians", peers),
            ("stages", f"{image} image, {place}: CPU seconds that the machine needs", stages),
        ):
            if bars:
                paths.append(os.path.join(folder, f"{name}-{place}-{subject}.svg"))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.write(draw(title, bars))
    return paths


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", colour: str = "") -> str:
    """An element with words.

    Args:
        x: where they begin, or have their middle or end, by ``anchor``.
        y: of the line that they stand on.
        words: to be shown.
        anchor: ``start``, ``middle`` or ``end``.
        weight: ``normal`` or ``bold``.
        colour: of CSS; by default that of the page.
    """
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    fill = f' style="fill:{colour}"' if colour else ""
    return f"<text {place}{fill}>{escape(words)}</text>"


def main() -> int:
    """Draws the results that the command line names."""
    source, folder = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        results = json.load(file)
    for path in write_pictures(results, folder, os.path.splitext(os.path.basename(source))[0]):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
