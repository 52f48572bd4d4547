"""The SVG chart of ``stats``: one row per partition, with its records over time and bars of its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.reading.charts import LEVELS, Mark, bar, document, strip, text, tick
from stratalog_spark.jobs.sketch import TimeSketch
from stratalog_spark.jobs.stats import PartitionStats, time_text

_CELLS: Final = 120
_WIDTH, _LABEL, _STRIP, _BAR, _GAP = 1270, 170, 560, 110, 14
_ROW, _TOP, _BOTTOM = 22, 84, 46
_LARGEST: Final = 400  # limit of rows; further partitions are omitted, and the title says how many are shown
_BARS: Final = ("records", "log_bytes", "keys")


def stats_chart(found: Sequence[PartitionStats], title: str) -> str:
    """Return an SVG with one row for each partition, in the given order, with at most 400 rows."""
    shown = found[:_LARGEST]
    height = _TOP + _ROW * max(len(shown), 1) + _BOTTOM
    parts = [text(20, 32, title, "head"), text(20, 52, _summary(found, len(shown)), "soft"), *_heads()]
    first, last = _span(shown)
    most = _most(shown, first, last)
    for number, each in enumerate(shown):
        parts += _row(each, _TOP + number * _ROW, first, last, most, shown)
    parts += _axis(first, last, _TOP + _ROW * max(len(shown), 1))
    return document(_WIDTH, height, parts)


def amount(number: int) -> str:
    """Return a number as text for people: ``9,999`` or, from 10,000 on, ``1.2 M``."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (size if size != 10**4 else 1000):.1f} {unit}"
    return f"{number:,}"


def _summary(found: Sequence[PartitionStats], shown: int) -> str:
    whole = (
        f"{len({each.log.topic for each in found})} topics, {len(found)} partitions, "
        f"{amount(sum(each.records for each in found))} records, {amount(sum(each.log_bytes for each in found))}B"
    )
    damaged = sum(each.damaged for each in found)
    return (
        whole
        + (f", {damaged} corrupt batches" if damaged else "")
        + (f"; the first {shown}" if shown < len(found) else "")
    )


def _heads() -> list[str]:
    names = [(_LABEL, "records over time"), *((_bar_x(number), name) for number, name in enumerate(_BARS))]
    return [text(x, _TOP - 10, name.replace("log_bytes", "bytes"), "soft") for x, name in names]


def _bar_x(number: int) -> int:
    return _LABEL + _STRIP + _GAP + number * (_BAR + 46 + _GAP)


def _span(found: Sequence[PartitionStats]) -> tuple[int, int]:
    firsts = [each.first_ms for each in found if each.first_ms is not None]
    lasts = [each.last_ms for each in found if each.last_ms is not None]
    return (min(firsts), max(lasts)) if firsts else (0, 0)


def _cells(times: TimeSketch, first: int, last: int) -> list[float]:
    """Return the number of records in each of 120 equal cells of the time from ``first`` to ``last`` (ms since 1970).

    The records of a bin that covers several cells are distributed over them.
    """
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
    middle, label = y + _ROW - 7, str(each.log)
    shown = label if len(label) <= 22 else f"{label[:10]}…{label[-11:]}"
    cells = [
        Mark(cell / _CELLS, (cell + 1) / _CELLS, f"level-{min(int(count / most * LEVELS), LEVELS - 1)}")
        for cell, count in enumerate(_cells(each.times, first, last))
        if count
    ]
    parts = [
        text(_LABEL - 10, middle, shown, "end bad" if each.damaged else "end", title=label),
        strip(cells, place=f'x="{_LABEL}" y="{y + 2}" width="{_STRIP}"', height=_ROW - 4),
    ]
    for number, name in enumerate(_BARS):
        value, largest = getattr(each, name), max(getattr(other, name) for other in found)
        x, width = _bar_x(number), _BAR * value / largest if largest else 0
        parts += [bar(x, y + 5, width, _ROW - 10), text(x + width + 5, middle, amount(value))]
    return parts


def _axis(first: int, last: int, y: int) -> list[str]:
    if first == last == 0:
        return [text(_LABEL, y + 18, "no record has a timestamp", "soft")]
    parts = []
    for number, anchor in ((0, ""), (1, "middle"), (2, "end")):
        x, moment = _LABEL + number * _STRIP // 2, first + (last - first) * number // 2
        shown = (time_text(moment) or "").replace("T", " ").replace("Z", "")
        parts += [tick(x, y), text(x, y + 20, shown, f"soft {anchor}")]
    return parts
