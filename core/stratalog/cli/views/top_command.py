"""``stratalog top``: show the topics of a log directory or a tier live in the terminal."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cli.options import LogPlace, json_option, view_options
from stratalog.cli.output import Columns, Output, TitledTable, moment, size_text
from stratalog.cli.parameters import NumberRange
from stratalog.cli.views.activity import Activity, ActivitySample, TopicActivity
from stratalog.env.clock import SystemClock
from stratalog.spi.commands import stop_event

_TOPICS: Final[Columns[TopicActivity]] = {
    "topic": lambda topic: topic.topic,
    "parts": lambda topic: topic.partitions,
    "rate/s": lambda topic: topic.rate,
    "HW": lambda topic: topic.high_watermark,
    "log end": lambda topic: topic.log_end,
    "local": lambda topic: size_text(topic.local_bytes),
    "tier": lambda topic: size_text(topic.tier_bytes),
    "tier lag": lambda topic: size_text(topic.tier_lag_bytes),
    "next": lambda topic: f"cannot be read: {topic.error}" if topic.error else topic.next,
}
_GROUPS: Final = ("group", "topic", "lag")
# minimum width of a terminal in characters, and the columns that are shown at this width
_WIDTHS: Final = (
    (110, tuple(_TOPICS)),
    (80, ("topic", "rate/s", "HW", "local", "tier", "tier lag", "next")),
    (0, ("topic", "rate/s", "HW", "tier lag")),
)
_JSON_TOPICS: Final = (
    "topic", "partitions", "rate", "high_watermark", "log_end", "local_bytes", "tier_bytes", "tier_lag_bytes", "next",
    "error",
)  # fmt: skip
_SECOND_MS: Final = 1000


@click.command()
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=NumberRange(0.1, 3600),
    metavar="SECONDS",
    help="Time between two samples.",
)
@click.option(
    "--once", is_flag=True, help="Print one table, and exit. The table has no rates, because a rate needs two samples."
)
@view_options
@json_option
def top(place: LogPlace, output: Output, *, interval: float, once: bool) -> int:
    """Show the topics of a log directory or a tier: rates, offsets, sizes, next actions, lag of groups.

    The command runs until Ctrl-C. It does not lock or change the logs, and can run while a broker or an engine is
    running. While a writer is running, the high watermark is the one in the writer's last checkpoint. A rate is the
    mean of the last 30 seconds. Tier lag is the size of closed segments that are not in the tier yet. The exit code is
    1 if a log or the groups could not be read in the last sample.
    """
    clock = SystemClock()
    with stop_event() as stop, place.reader() as reader, output.live() as show:
        activity = Activity(reader, clock)
        while True:
            sample = activity.sample()
            if output.as_json:
                _print_json(output, sample)
            else:
                show(f"{reader.location}  {moment(sample.time_ms)}", _tables(sample, output.width))
            if once or clock.wait(stop, round(interval * _SECOND_MS)):
                break
    return 1 if any(topic.error for topic in sample.topics) or sample.group_error else 0


def _tables(sample: ActivitySample, width: int) -> list[TitledTable]:
    """Return the tables of a sample. The table of topics has only the columns for a terminal of ``width`` characters.

    The topics with the highest rates are first. Kafka's internal topics are last.
    """
    topics = sorted(sample.topics, key=lambda topic: (topic.topic.startswith("__"), -(topic.rate or 0), topic.topic))
    groups = sorted(sample.groups, key=lambda group: (-(group.lag or 0), group.group, group.topic))
    columns = next(columns for min_width, columns in _WIDTHS if width >= min_width)
    rows = [[_TOPICS[column](topic) for column in columns] for topic in topics]
    tables: list[TitledTable] = [("topics", columns, rows)]
    if groups:
        lags = [(group.group, group.topic, group.lag) for group in groups]
        tables.append(("groups", _GROUPS, lags))
    if sample.group_error:
        tables.append(("groups", ("error",), [(sample.group_error,)]))
    return tables


def _print_json(output: Output, sample: ActivitySample) -> None:
    for topic in sample.topics:
        output.item({"time_ms": sample.time_ms, **{name: getattr(topic, name) for name in _JSON_TOPICS}})
    for group in sample.groups:
        output.item({"time_ms": sample.time_ms, **{name: getattr(group, name) for name in _GROUPS}})
    if sample.group_error:
        output.item({"time_ms": sample.time_ms, "error": sample.group_error})
    output.flush()
