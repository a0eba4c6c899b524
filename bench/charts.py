"""Charts of the results: ``python -m bench.charts RESULTS.json FOLDER`` draws them as SVG.

The charts consist of rectangles and text, need no library, and are readable on light and dark pages.
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
class BarSegment:
    """A segment of a bar.

    Attributes:
        name: name in the legend; empty for none.
        value: length, in the unit of the chart.
        colour: CSS colour.
    """

    name: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a chart.

    Attributes:
        name: label before the bar; a heading without segments.
        segments: consecutive segments.
        note: label after the bar.
    """

    name: str
    segments: tuple[BarSegment, ...] = ()
    note: str = ""

    @property
    def value(self) -> float:
        """Return the total length."""
        return sum(segment.value for segment in self.segments)


def draw(title: str, bars: Sequence[Bar]) -> str:
    """Draw bars to one scale, with a legend of the named segments.

    Args:
        title: title of the chart.
        bars: bars from top to bottom.

    Returns:
        An SVG document.
    """
    legend = {segment.name: segment.colour for bar in bars for segment in bar.segments if segment.name}
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
        if not bar.segments:
            lines.append(text(8, y + 13 + _GAP, bar.name, weight="bold"))
            y += _GAP
        else:
            lines.append(text(_NAMES - 8, y + 13, bar.name, anchor="end"))
            x = float(_NAMES)
            for segment in bar.segments:
                lines.append(_rectangle(x, y, segment.value * scale, _BAR, segment.colour))
                x += segment.value * scale
            lines.append(text(x + 6, y + 13, bar.note))
        y += _BAR + _GAP
    return document(title, _WIDTH, y + _GAP, lines)


def document(title: str, width: float, height: float, lines: Sequence[str]) -> str:
    """Return an SVG document of elements, for light and dark pages.

    Args:
        title: accessible title.
        width: width in pixels.
        height: height in pixels.
        lines: SVG elements.
    """
    size = f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}"'
    style = (
        "text{font-family:sans-serif;font-size:13px;fill:#1b1f24}@media(prefers-color-scheme:dark){text{fill:#e6e9ed}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>'
    return "\n".join((head, f"<style>{style}</style>", *lines, "</svg>\n"))


def bars_of_peers(rows: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]], location: str) -> list[Bar]:
    """Return a bar for each peer and limit, grouped by comparison.

    Args:
        rows: the ``summary`` of the results.
        limits: the ``limits`` of the results.
        location: name of the location to show.
    """
    bars = []
    for comparison in dict.fromkeys(row["comparison"] for row in rows if row["location"] == location):
        bars.append(Bar(comparison))
        for limit in limits:
            if (limit["comparison"], limit["location"]) == (comparison, location):
                note = f"{limit['seconds']:.2f} s"
                bars.append(Bar("limit of the machine", (BarSegment("", limit["seconds"], _LIMIT),), note))
        for row in rows:
            if (row["comparison"], row["location"]) == (comparison, location):
                colour = _OURS if row["peer"].startswith("fastpull") else _OTHERS
                times = "" if row["to_first"] in (None, 1.0) else f" ({row['to_first']:.1f}x)"
                note = f"{row['wall_seconds']:.2f} s{times}"
                bars.append(Bar(row["peer"], (BarSegment("", row["wall_seconds"], colour),), note))
    return bars


def bars_of_stages(limits: Sequence[Mapping[str, Any]], location: str) -> list[Bar]:
    """Return a bar for each comparison, of the processor seconds of its stages.

    Args:
        limits: the ``limits`` of the results.
        location: name of the location to show.
    """
    shown = [limit for limit in limits if limit["location"] == location]
    names = [stage for stage in LimitStage if any(stage in limit["stages"] for limit in shown)]
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    return [
        Bar(
            limit["comparison"],
            tuple(BarSegment(name, seconds, colours[name]) for name, seconds in limit["stages"].items()),
            f"{sum(limit['stages'].values()):.2f} CPU s",
        )
        for limit in shown
    ]


def write_charts(results: Mapping[str, Any], folder: str, name: str) -> list[str]:
    """Draw all charts of the results, and return the paths of their files.

    Args:
        results: the JSON document of a benchmark.
        folder: an existing folder.
        name: prefix of the file names.
    """
    image, paths = os.path.basename(results["image"]["name"]), []
    for location in dict.fromkeys(row["location"] for row in results["summary"]):
        peers = bars_of_peers(results["summary"], results["limits"], location)
        stages = bars_of_stages(results["limits"], location)
        for subject, title, bars in (
            ("peers", f"{image} image, {location}: seconds, medians", peers),
            ("stages", f"{image} image, {location}: CPU seconds of the stages", stages),
        ):
            if bars:
                paths.append(os.path.join(folder, f"{name}-{location}-{subject}.svg"))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.write(draw(title, bars))
    return paths


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", colour: str = "") -> str:
    """Return an SVG text element.

    Args:
        x: position of the start, middle or end of the text, by ``anchor``.
        y: position of the baseline.
        words: content of the element.
        anchor: ``start``, ``middle`` or ``end``.
        weight: ``normal`` or ``bold``.
        colour: CSS colour; that of the page by default.
    """
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    fill = f' style="fill:{colour}"' if colour else ""
    return f"<text {position}{fill}>{escape(words)}</text>"


def main() -> int:
    """Draw the results named on the command line."""
    source, folder = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        results = json.load(file)
    for path in write_charts(results, folder, os.path.splitext(os.path.basename(source))[0]):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
