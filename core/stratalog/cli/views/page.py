"""HTML pages of the report and of the console: templates and charts. All texts in the pages are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from stratalog.cleaning.explain.explain import Fate
from stratalog.cli.output import moment, printable, size_text
from stratalog.cli.views.overview import LogOverview, Overview, Place, Span
from stratalog.errors import PluginImportError
from stratalog.reading.charts import STYLE, Mark, patterns, strip, swatch

PLACES: Final = {
    Place.TIER: "in the tier only",
    Place.BOTH: "on local disk and in the tier",
    Place.LOCAL: "on local disk only",
    Place.ACTIVE: "active segment, on local disk",
}
FATES: Final = {
    Fate.DELETE: "is deleted by the next pass",
    Fate.EVICT: "leaves local disk at the next pass",
    Fate.COMPACT: "is compacted by the next compaction round",
    Fate.KEEP: "is kept",
}
_SECOND_MS: Final = 1000
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", _SECOND_MS))


def render(template: str, **values: object) -> str:
    """Return the text of a template with ``values``. Bytes of paths that are not UTF-8 are shown as escapes."""
    page = str(_environment().get_template(template).render(**values))
    return page.encode(errors="backslashreplace").decode()


def time_text(time_ms: int | None) -> str:
    """Return a time as text in UTC, with seconds; ``-`` if the time is None (unknown)."""
    return "-" if time_ms is None else moment(time_ms).partition(".")[0].replace("T", " ")


def age_text(duration_ms: int) -> str:
    """Return a duration as text in its largest unit; ``-`` if the duration is negative (unknown)."""
    if duration_ms < 0:
        return "-"
    for unit, unit_ms in _UNITS:
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:,.0f} {unit}"
    return f"{duration_ms} ms"


Bounds: TypeAlias = tuple[int, int]
"""Start and end of the axis of a chart."""


def bounds_of(logs: Iterable[LogOverview]) -> tuple[Bounds, Bounds]:
    """Return the first and the exclusive end offset of all segments, and their first and last known time (ms).

    Bounds that are not known are (0, 0).
    """
    spans = [span for log in logs for span in log.spans]
    times = [time_ms for span in spans for time_ms in (span.first_ms, span.last_ms) if time_ms >= 0]
    starts, ends = [span.start for span in spans], [span.end for span in spans]
    return (min(starts, default=0), max(ends, default=0)), (min(times, default=0), max(times, default=0))


def offsets_strip(log: LogOverview, bounds: Bounds) -> str:
    """Return a chart of the segments of a log over offsets, as SVG."""
    return _strip(log, bounds, "offsets", ((span, span.start, span.end) for span in log.spans))


def times_strip(log: LogOverview, bounds: Bounds) -> str:
    """Return a chart of the segments of a log over time, as SVG. Segments without a time are omitted."""
    ranges = (
        (span, span.first_ms if span.first_ms >= 0 else span.last_ms, span.last_ms)
        for span in log.spans
        if span.last_ms >= 0
    )
    return _strip(log, bounds, "time", ranges)


def _strip(log: LogOverview, bounds: Bounds, axis: str, ranges: Iterable[tuple[Span, int, int]]) -> str:
    first, width = bounds[0], max(bounds[1] - bounds[0], 1)
    marks = [
        Mark((start - first) / width, (end - first) / width, span.place, span_text(span)) for span, start, end in ranges
    ]
    return strip(marks, label=f"segments of {log.name} over {axis}, from {bounds[0]} to {bounds[1]}")


def span_text(span: Span) -> str:
    """Return the offsets, size, place, time and fate of a span as one line of text."""
    count_text = f"{span.segments} segments" if span.segments > 1 else "segment"
    return (
        f"{count_text} [{span.start}, {span.end}), {size_text(span.size_bytes)}, {PLACES[span.place]}, newest record "
        f"{time_text(span.last_ms)}; {FATES[span.fate]}"
    )


def attention(overview: Overview) -> Iterator[str]:
    """Yield problems that an operator should check, each as one line of text. The most serious problems are first."""
    for log in overview.logs:
        if log.error:
            yield f"{log.name} cannot be read: {log.error}"
    if overview.group_error:
        yield f"consumer groups cannot be read: {overview.group_error}"
    for log in overview.logs:
        for transaction in log.transactions:
            if transaction.is_long:
                yield (
                    f"{log.name}: a transaction of producer {transaction.producer_id} is open from offset "
                    f"{transaction.first_offset} since {age_text(transaction.age_ms)}; read_committed readers wait at it"
                )
    for log in overview.logs:
        if log.tier is not None and log.tier.orphans:
            yield (
                f"{log.name}: {log.tier.orphans} objects in the tier have no name in a manifest; uploads in progress count "
                "too, `stratalog tier gc` deletes what is left over"
            )
        if log.tier is not None and log.tier.bill is not None and log.tier.bill.warning:
            yield f"{log.name}: {log.tier.bill.warning}"


@cache
def _environment() -> Any:
    try:
        jinja2 = import_module("jinja2")
    except ImportError as error:
        raise PluginImportError("pages need jinja2", "report", "stratalog[cli]") from error
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    safe = import_module("markupsafe").Markup
    environment.filters |= {
        "size": size_text,
        "time": time_text,
        "age": age_text,
        "printable": printable,
        "moment": moment,
    }
    environment.filters["count"] = lambda number: f"{number:,}"
    environment.globals |= {
        "chart_style": safe(STYLE),
        "patterns": lambda: safe(patterns()),
        "swatch": lambda kind: safe(swatch(kind)),
        "offsets_strip": lambda log, bounds: safe(offsets_strip(log, bounds)),
        "times_strip": lambda log, bounds: safe(times_strip(log, bounds)),
        "places": PLACES,
        "fates": FATES,
    }
    return environment
