"""Curves over logarithmic axes, drawn as SVG like `bench.charts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.charts import COLOURS, document, text

_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 180, 44, 54


@dataclass(frozen=True, slots=True)
class Curve:
    """A labelled curve.

    Attributes:
        name: label at its end.
        points: pairs (x, y), both above zero, from left to right.
    """

    name: str
    points: tuple[tuple[float, float], ...]


def draw_curves(title: str, curves: Sequence[Curve], *, x: str, y: str) -> str:
    """Draw curves to one scale.

    Args:
        title: title of the chart.
        curves: curves, with at least one point in total.
        x: label of the horizontal axis.
        y: label of the vertical axis.

    Returns:
        An SVG document.
    """
    points = [point for curve in curves for point in curve.points]
    horizontal = _Axis.over([point[0] for point in points], _LEFT, _WIDTH - _RIGHT)
    vertical = _Axis.over([point[1] for point in points], _HEIGHT - _BOTTOM, _TOP)
    lines = [text(8, 22, title, weight="bold")]
    for tick in horizontal.ticks():
        at = horizontal.position(tick)
        lines += [
            _line(at, _TOP, at, _HEIGHT - _BOTTOM),
            text(at, _HEIGHT - _BOTTOM + 18, f"{tick:,g}", anchor="middle"),
        ]
    for tick in vertical.ticks():
        at = vertical.position(tick)
        lines += [_line(_LEFT, at, _WIDTH - _RIGHT, at), text(_LEFT - 8, at + 4, f"{tick:,g}", anchor="end")]
    lines += [text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x, anchor="middle"), text(8, _TOP - 6, y)]
    names = sorted(((vertical.position(curve.points[-1][1]), curve) for curve in curves), key=lambda pair: pair[0])
    below = -math.inf
    for position, curve in names:
        colour = COLOURS[list(curves).index(curve) % len(COLOURS)]
        path = " ".join(f"{horizontal.position(at):.1f},{vertical.position(value):.1f}" for at, value in curve.points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        below = max(position + 4, below + 16)  # labels do not overlap
        lines.append(text(_WIDTH - _RIGHT + 8, below, curve.name, colour=colour))
    return document(title, _WIDTH, _HEIGHT, lines)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: int  # exponents of ten
    high: int
    start: float
    stop: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, stop)

    def position(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#9aa4b1" stroke-opacity="0.4"/>'
