"""The SVG chart of ``stats``: one row per partition, with its records over time and bars of its sizes.

No library needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from stratalog_spark.jobs.sketch import TimeSketch
from stratalog_spark.jobs.stats import PartitionStats, time_text

_CELLS: Final = 120
_WIDTH, _LABEL, _STRIP, _BAR, _GAP = 1270, 170, 560, 110, 14
_ROW, _TOP, _BOTTOM = 22, 84, 46
_LARGEST: Final = 400  # limit of rows; further partitions are omitted, and the title says how many are shown
_COLORS: Final = ("#eef3f8", "#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c")
_BARS: Final = (("records", "#3182bd"), ("log_bytes", "#31a354"), ("keys", "#e6802b"))
_STYLE: Final = (
    "text{font:12px system-ui,-apple-system,Segoe UI,sans-serif;fill:#222}.t{font-size:18px;font-weight:600}"
    ".s{fill:#666}.n{text-anchor:end}.m{text-anchor:middle}"
)


def picture(found: Sequence[PartitionStats], title: str) -> str:
    """Return an SVG of all partitions in their order, at most 400."""
    shown = found[:_LARGEST]
    height = _TOP + _ROW * max(len(shown), 1) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="t" x="20" y="32">{escape(title)}</text>',
        f'<text class="s" x="20" y="52">{escape(_summary(found, len(shown)))}</text>',
        *_heads(),
    ]
    first, last = _span(shown)
    most = _most(shown, first, last)
    for number, each in enumerate(shown):
        parts += _row(each, _TOP + number * _ROW, first, last, most, shown)
    parts += _axis(first, last, _TOP + _ROW * max(len(shown), 1))
    return "\n".join([*parts, "</svg>", ""])


def amount(number: int) -> str:
    """Format a number for people: ``1.2 M``."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (size if size != 10**4 else 1000):.1f} {unit}"
    return f"{number:,}"


def _summary(found: Sequence[PartitionStats], shown: int) -> str:
    text = (
        f"{len({each.log.topic for each in found})} topics, {len(found)} partitions, "
        f"{amount(sum(each.records for each in found))} records, {amount(sum(each.log_bytes for each in found))}B"
    )
    damaged = sum(each.damaged for each in found)
    return (
        text
        + (f", {damaged} corrupt batches" if damaged else "")
        + (f"; the first {shown}" if shown < len(found) else "")
    )


def _heads() -> list[str]:
    y, parts = _TOP - 10, [f'<text class="s" x="{_LABEL}" y="{_TOP - 10}">records over time</text>']
    for number, (name, _) in enumerate(_BARS):
        x = _bar_x(number)
        parts.append(f'<text class="s" x="{x}" y="{y}">{name.replace("log_bytes", "bytes")}</text>')
    return parts


def _bar_x(number: int) -> int:
    return _LABEL + _STRIP + _GAP + number * (_BAR + 46 + _GAP)


def _span(found: Sequence[PartitionStats]) -> tuple[int, int]:
    firsts = [each.first_ms for each in found if each.first_ms is not None]
    lasts = [each.last_ms for each in found if each.last_ms is not None]
    return (min(firsts), max(lasts)) if firsts else (0, 0)


def _cells(times: TimeSketch, first: int, last: int) -> list[float]:
    """Return the number of records per cell. A bin that covers several cells is distributed over them."""
    cells, width = [0.0] * _CELLS, max(last + 1 - first, 1) / _CELLS
    for number, count in times.counts.items():
        start = max((number * times.width_ms - first) / width, 0.0)
        end = min(((number + 1) * times.width_ms - first) / width, float(_CELLS))
        low, high = int(start), min(int(end), _CELLS - 1)
        if high <= low or end <= start:
            cells[min(low, _CELLS - 1)] += count
            continue
        for cell in range(low, high + 1):
            cells[cell] += count * max(min(end, cell + 1) - max(start, cell), 0.0) / (end - start)
    return cells


def _most(found: Sequence[PartitionStats], first: int, last: int) -> float:
    return max((max(_cells(each.times, first, last)) for each in found), default=0.0)


def _row(
    each: PartitionStats, y: int, first: int, last: int, most: float, found: Sequence[PartitionStats]
) -> list[str]:
    middle = y + _ROW - 7
    label = str(each.log)
    shown = label if len(label) <= 22 else f"{label[:10]}…{label[-11:]}"
    mark = ' fill="#c0392b"' if each.damaged else ""
    parts = [
        f'<text class="n" x="{_LABEL - 10}" y="{middle}"{mark}><title>{escape(label)}</title>{escape(shown)}</text>'
    ]
    wide = _STRIP / _CELLS
    parts.append(f'<rect x="{_LABEL}" y="{y + 2}" width="{_STRIP}" height="{_ROW - 4}" fill="#f6f6f6"/>')
    for cell, count in enumerate(_cells(each.times, first, last)):
        if count:
            color = _COLORS[min(int(count / most * len(_COLORS)), len(_COLORS) - 1)]
            x = _LABEL + cell * wide
            parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{wide + 0.2:.1f}" height="{_ROW - 4}" fill="{color}"/>')
    for number, (name, color) in enumerate(_BARS):
        value, largest = getattr(each, name), max(getattr(other, name) for other in found)
        x, width = _bar_x(number), _BAR * value / largest if largest else 0
        parts += [
            f'<rect x="{x}" y="{y + 5}" width="{width:.1f}" height="{_ROW - 10}" fill="{color}"/>',
            f'<text x="{x + width + 5:.1f}" y="{middle}">{amount(value)}</text>',
        ]
    return parts


def _axis(first: int, last: int, y: int) -> list[str]:
    if first == last == 0:
        return [f'<text class="s" x="{_LABEL}" y="{y + 18}">no record has a timestamp</text>']
    parts = []
    for number, anchor in ((0, ""), (1, "m"), (2, "n")):
        x, moment = _LABEL + number * _STRIP // 2, first + (last - first) * number // 2
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{y + 5}" stroke="#999"/>')
        text = (time_text(moment) or "").replace("T", " ").replace("Z", "")
        parts.append(f'<text class="s {anchor}" x="{x}" y="{y + 20}">{escape(text)}</text>')
    return parts
