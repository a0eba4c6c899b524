"""Curves over logarithmic axes, as SVG like `bench.pictures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.pictures import COLOURS, document, text

_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 180, 44, 54


@dataclass(frozen=True, slots=True)
class Curve:
    """A line.

    Attributes:
        name: at its end.
        points: (x, y), both above zero, from left to right.
    """

    name: str
    points: tuple[tuple[float, float], ...]


def draw_curves(title: str, curves: Sequence[Curve], *, x: str, y: str) -> str:
    """Draws curves to one scale.

    Args:
        title: above all.
        curves: of which at least one has a point.
        x: what the lower axis says.
        y: what the other one says.

    Returns:
        An SVG document.
    """
    points = [point for curve in curves for point in curve.points]
    across = _Axis.over([point[0] for point in points], _LEFT, _WIDTH - _RIGHT)
    up = _Axis.over([point[1] for point in points], _HEIGHT - _BOTTOM, _TOP)
    lines = [text(8, 22, title, weight="bold")]
    for tick in across.ticks():
        at = across.place(tick)
        lines += [
            _line(at, _TOP, at, _HEIGHT - _BOTTOM),
            text(at, _HEIGHT - _BOTTOM + 18, f"{tick:,g}", anchor="middle"),
        ]
    for tick in up.ticks():
        at = up.place(tick)
        lines += [_line(_LEFT, at, _WIDTH - _RIGHT, at), text(_LEFT - 8, at + 4, f"{tick:,g}", anchor="end")]
    lines += [text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x, anchor="middle"), text(8, _TOP - 6, y)]
    names = sorted(((up.place(curve.points[-1][1]), curve) for curve in curves), key=lambda pair: pair[0])
    below = -math.inf
    for place, curve in names:
        colour = COLOURS[list(curves).index(curve) % len(COLOURS)]
        path = " ".join(f"{across.place(at):.1f},{up.place(value):.1f}" for at, value in curve.points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        below = max(place + 4, below + 16)  # names do not cover each other
        lines.append(text(_WIDTH - _RIGHT + 8, below, curve.name, colour=colour))
    return document(title, _WIDTH, _HEIGHT, lines)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: int  # powers of ten
    high: int
    start: float
    stop: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, stop)

    def place(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#9aa4b1" stroke-opacity="0.4"/>'
