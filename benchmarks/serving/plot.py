"""docs/benchmarks.svg: latency over the number of clients, a panel for each load."""

import math
import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.serving.page import PAGE
from benchmarks.serving.rounds import Round
from benchmarks.serving.set_ups import MONOLITH, PAIR, STOCK

PLOT: Final = PAGE.parent / "benchmarks.svg"

_COLOURS: Final = {MONOLITH: "#555555", PAIR: "#0a7d34", STOCK: "#c2410c"}
_WIDTH, _HEIGHT, _MARGIN, _PER_ROW = 300, 220, 40, 3


def plot(rounds: Sequence[Round]) -> str:
    loads = list(dict.fromkeys((entry.model, entry.workload) for entry in rounds))
    rows = math.ceil(len(loads) / _PER_ROW)
    panels = [
        f'<g transform="translate({_WIDTH * (index % _PER_ROW)},{_HEIGHT * (index // _PER_ROW)})">'
        + _panel([entry for entry in rounds if (entry.model, entry.workload) == load])
        + "</g>"
        for index, load in enumerate(loads)
    ]
    legend = "".join(
        f'<text x="{_MARGIN + 120 * index}" y="{_HEIGHT * rows + 16}" fill="{colour}">{name}</text>'
        for index, (name, colour) in enumerate(_COLOURS.items())
    )
    size = f'width="{_WIDTH * _PER_ROW}" height="{_HEIGHT * rows + 30}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}{legend}</svg>\n'
    )


def _panel(rounds: Sequence[Round]) -> str:
    clients = sorted({entry.concurrency for entry in rounds})
    curves = {name: _p50_ms(rounds, name, clients) for name in _COLOURS}
    top = max(max(curve, default=0.0) for curve in curves.values()) or 1.0
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(clients) - 1)
    low, high = _HEIGHT - _MARGIN, _MARGIN

    def point(index: int, value: float) -> str:
        return f"{_MARGIN + step * index:.0f},{low - (low - high) * value / top:.0f}"

    lines = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[name]}" stroke-width="2" points="'
        + " ".join(point(index, value) for index, value in enumerate(curve))
        + '"/>'
        for name, curve in curves.items()
    )
    ticks = "".join(
        f'<text x="{_MARGIN + step * index:.0f}" y="{low + 15}" text-anchor="middle">{count}</text>'
        for index, count in enumerate(clients)
    )
    return (
        f'<text x="{_MARGIN}" y="20">{rounds[0].model}: {rounds[0].workload}, p50 in ms</text>'
        f'<path d="M{_MARGIN},{high}V{low}H{_WIDTH - _MARGIN}" fill="none" stroke="#999999"/>'
        f'<text x="{_MARGIN - 4}" y="{high + 4}" text-anchor="end">{top:.0f}</text>{ticks}{lines}'
    )


def _p50_ms(rounds: Sequence[Round], set_up: str, clients: Sequence[int]) -> list[float]:
    """At each number of clients; empty for one that was not asked."""
    mine = [entry for entry in rounds if entry.set_up == set_up]
    if not mine:
        return []
    return [
        1000 * statistics.median(entry.p50_s for entry in mine if entry.concurrency == count)
        for count in clients
    ]
