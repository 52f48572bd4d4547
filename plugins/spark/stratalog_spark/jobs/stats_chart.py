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
_LARGEST: Final = 400  # maximum number of rows; if partitions are omitted, the title contains the number of shown ones
_BARS: Final = ("records", "log_bytes", "keys")


def stats_chart(all_stats: Sequence[PartitionStats], title: str) -> str:
    """Return an SVG with one row for each partition, in the given order, with at most 400 rows."""
    shown_stats = all_stats[:_LARGEST]
    height = _TOP + _ROW * max(len(shown_stats), 1) + _BOTTOM
    parts = [text(20, 32, title, "head"), text(20, 52, _summary(all_stats, len(shown_stats)), "soft"), *_heads()]
    first, last = _span(shown_stats)
    max_count = max((max(_cells(partition.times, first, last)) for partition in shown_stats), default=0.0)
    for number, partition in enumerate(shown_stats):
        parts += _row(partition, _TOP + number * _ROW, first, last, max_count, shown_stats)
    parts += _axis(first, last, _TOP + _ROW * max(len(shown_stats), 1))
    return document(_WIDTH, height, parts)


def amount(number: int) -> str:
    """Return a number as text for people: ``9,999`` for example, or ``1.2 M`` if it is 10,000 or more."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (size if size != 10**4 else 1000):.1f} {unit}"
    return f"{number:,}"


def _summary(all_stats: Sequence[PartitionStats], shown_count: int) -> str:
    totals = (
        f"{len({partition.log.topic for partition in all_stats})} topics, {len(all_stats)} partitions, "
        f"{amount(sum(partition.records for partition in all_stats))} records, "
        f"{amount(sum(partition.log_bytes for partition in all_stats))}B"
    )
    damaged = sum(partition.damaged for partition in all_stats)
    return (
        totals
        + (f", {damaged} corrupt batches" if damaged else "")
        + (f"; the first {shown_count}" if shown_count < len(all_stats) else "")
    )


def _heads() -> list[str]:
    names = [(_LABEL, "records over time"), *((_bar_x(number), name) for number, name in enumerate(_BARS))]
    return [text(x, _TOP - 10, name.replace("log_bytes", "bytes"), "soft") for x, name in names]


def _bar_x(number: int) -> int:
    return _LABEL + _STRIP + _GAP + number * (_BAR + 46 + _GAP)


def _span(shown_stats: Sequence[PartitionStats]) -> tuple[int, int]:
    firsts = [partition.first_ms for partition in shown_stats if partition.first_ms is not None]
    lasts = [partition.last_ms for partition in shown_stats if partition.last_ms is not None]
    return (min(firsts), max(lasts)) if firsts else (0, 0)


def _cells(times: TimeSketch, first: int, last: int) -> list[float]:
    """Return the number of records in each of 120 equal cells of the time from ``first`` to ``last`` (ms since 1970).

    If a bin covers several cells, its records are distributed equally over these cells.
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


def _row(
    partition: PartitionStats, y: int, first: int, last: int, max_count: float, shown_stats: Sequence[PartitionStats]
) -> list[str]:
    middle, label = y + _ROW - 7, str(partition.log)
    short_label = label if len(label) <= 22 else f"{label[:10]}…{label[-11:]}"
    cells = [
        Mark(cell / _CELLS, (cell + 1) / _CELLS, f"level-{min(int(count / max_count * LEVELS), LEVELS - 1)}")
        for cell, count in enumerate(_cells(partition.times, first, last))
        if count
    ]
    parts = [
        text(_LABEL - 10, middle, short_label, "end bad" if partition.damaged else "end", title=label),
        strip(cells, place=f'x="{_LABEL}" y="{y + 2}" width="{_STRIP}"', height=_ROW - 4),
    ]
    for number, name in enumerate(_BARS):
        value, largest = getattr(partition, name), max(getattr(row, name) for row in shown_stats)
        x, width = _bar_x(number), _BAR * value / largest if largest else 0
        parts += [bar(x, y + 5, width, _ROW - 10), text(x + width + 5, middle, amount(value))]
    return parts


def _axis(first: int, last: int, y: int) -> list[str]:
    if first == last == 0:
        return [text(_LABEL, y + 18, "no record has a timestamp", "soft")]
    parts = []
    for number, anchor in ((0, ""), (1, "middle"), (2, "end")):
        x, time_ms = _LABEL + number * _STRIP // 2, first + (last - first) * number // 2
        time_label = (time_text(time_ms) or "").replace("T", " ").replace("Z", "")
        parts += [tick(x, y), text(x, y + 20, time_label, f"soft {anchor}")]
    return parts
