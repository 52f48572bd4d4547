"""``stratalog top``: show the topics of a log directory or a tier live in the terminal.

An ``Activity`` takes samples of the topics and groups, and computes the rates between samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from stratalog.cleaning.explain.explain import Fate
from stratalog.cli.options import LogPlace, json_option, view_options
from stratalog.cli.output import Columns, Output, TitledTable, moment, size_text
from stratalog.cli.parameters import NumberRange
from stratalog.cli.views.overview import Detail, LogOverview, collect_log, group_lags
from stratalog.client.committed_offsets import CommittedOffsets
from stratalog.env.clock import Clock, SystemClock
from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition
from stratalog.reading.reader import Reader
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
# minimum width of a terminal in characters, and the columns that are shown at this width
_WIDTHS: Final = (
    (110, tuple(_TOPICS)),
    (80, ("topic", "rate/s", "HW", "local", "tier", "tier lag", "next")),
    (0, ("topic", "rate/s", "HW", "tier lag")),
)
_SECOND_MS: Final = 1000
WINDOW_MS: Final = 30_000  # window of a rate; long, because writers checkpoint the high watermark every few seconds


@click.command()
@click.option(
    "--interval", default=2.0, type=NumberRange(0.1, 3600), metavar="SECONDS", help="Time between two samples."
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
        tables.append(("groups", GroupActivity._fields, groups))
    if sample.group_error:
        tables.append(("groups", ("error",), [(sample.group_error,)]))
    return tables


def _print_json(output: Output, sample: ActivitySample) -> None:
    activities: list[TopicActivity | GroupActivity] = [*sample.topics, *sample.groups]
    for activity in activities:
        output.item({"time_ms": sample.time_ms, **activity._asdict()})
    if sample.group_error:
        output.item({"time_ms": sample.time_ms, "error": sample.group_error})
    output.flush()


class TopicActivity(NamedTuple):
    """State of one topic: sums over its partitions. The names of the fields are the keys of the JSON output.

    Attributes:
        rate: growth of ``high_watermark`` in offsets per second; None before the second sample.
        tier_lag_bytes: size of the closed segments that are not in the tier yet.
        next: next actions of retention and compaction; "" if nothing is planned.
        error: reason why a partition cannot be read, or "".
    """

    topic: str
    partitions: int
    rate: float | None
    high_watermark: int
    log_end: int
    local_bytes: int
    tier_bytes: int
    tier_lag_bytes: int
    next: str
    error: str


class GroupActivity(NamedTuple):
    """Lag of one group in one topic: the sum over the partitions for which the group has committed an offset.

    ``lag`` is None if the reader has none of these partitions.
    """

    group: str
    topic: str
    lag: int | None


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """State of a reader's logs at ``time_ms``. ``group_error`` is the reason why groups cannot be read, or ""."""

    time_ms: int
    topics: tuple[TopicActivity, ...]
    groups: tuple[GroupActivity, ...]
    group_error: str = ""


class Activity:
    """Samples of the logs of a reader, which stay open between samples.

    A sample reads only logs that have changed since the last sample, that had an error, or that have segments to
    offload.
    """

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader, self._clock = reader, clock
        self._groups = CommittedOffsets(reader)
        self._logs: dict[TopicPartition, LogOverview] = {}
        self._ends: deque[tuple[int, Mapping[str, int]]] = deque()  # time (ns) and high watermarks by topic

    def sample(self) -> ActivitySample:
        """Refresh the reader, and return the state of its logs."""
        self._refresh()
        now_ms, topics = self._clock.now_ms(), dict[str, list[LogOverview]]()
        for name in self._reader.partitions():
            if name not in self._logs:
                self._logs[name] = collect_log(self._reader, name, now_ms, Detail())
            topics.setdefault(name.topic, []).append(self._logs[name])
        rates = self._rates({topic: sum(log.offsets.high_watermark for log in logs) for topic, logs in topics.items()})
        topic_activities = tuple(_activity(topic, logs, rates.get(topic)) for topic, logs in topics.items())
        try:
            return ActivitySample(now_ms, topic_activities, self._group_activity())
        except StorageError as error:
            return ActivitySample(now_ms, topic_activities, (), str(error))

    def _refresh(self) -> None:
        """Refresh the reader. Discard logs with changes, errors or segments to offload: the next sample reads them.

        Logs with segments to offload are discarded, because the refresh of a directory's reader does not report changes
        that are visible only in the tier.
        """
        for name, log in list(self._logs.items()):
            if log.waiting_bytes or log.error:
                self._reader.release(name)
                del self._logs[name]
        for name in self._reader.refresh():
            self._logs.pop(name, None)
        for name in self._logs.keys() - set(self._reader.partitions()):
            del self._logs[name]

    def _rates(self, ends: Mapping[str, int]) -> dict[str, float]:
        """Return the growth of each topic in offsets per second over about 30 seconds; {} for the first sample.

        If the high watermark has decreased, the rate is 0: the topic was deleted and created again.
        """
        now_ns = self._clock.monotonic_ns()
        self._ends.append((now_ns, ends))
        while len(self._ends) > 2 and now_ns - self._ends[1][0] >= WINDOW_MS * 1_000_000:
            self._ends.popleft()
        began_ns, before = self._ends[0]
        seconds = (now_ns - began_ns) / 1e9
        return {topic: max(end - before.get(topic, 0), 0) / seconds for topic, end in ends.items()} if seconds else {}

    def _group_activity(self) -> tuple[GroupActivity, ...]:
        offsets = {name: log.offsets for name, log in self._logs.items() if not log.error}
        lags: dict[tuple[str, str], int | None] = {}
        for group_lag in group_lags(self._groups, offsets):
            key = (group_lag.group, group_lag.name.topic)
            if group_lag.lag is not None:
                lags[key] = (lags.get(key) or 0) + group_lag.lag
            else:
                lags.setdefault(key, None)
        return tuple(GroupActivity(group, topic, lag) for (group, topic), lag in lags.items())


def _activity(topic: str, logs: list[LogOverview], rate: float | None) -> TopicActivity:
    return TopicActivity(
        topic,
        len(logs),
        rate,
        sum(log.offsets.high_watermark for log in logs),
        sum(log.offsets.log_end for log in logs),
        sum(log.local_bytes for log in logs),
        sum(log.tier_bytes for log in logs),
        sum(log.waiting_bytes for log in logs),
        next_text(logs),
        next((f"{log.name}: {log.error}" for log in logs if log.error), ""),
    )


def next_text(logs: Iterable[LogOverview]) -> str:
    """Return the next actions of retention and compaction as one line of text.

    If nothing is due now, return the time of the next deletion, or "" if no deletion is planned.
    """
    spans = [span for log in logs for span in log.spans if span.start < span.end]
    actions = []
    for fate in (Fate.DELETE, Fate.EVICT, Fate.COMPACT):
        due_spans = [span for span in spans if span.fate is fate]
        if due_spans:
            size_bytes, count = sum(span.size_bytes for span in due_spans), sum(span.segments for span in due_spans)
            actions.append(f"{fate} {count} ({size_text(size_bytes)})")
    times = [span.when_ms for span in spans if span.when_ms is not None]
    return ", ".join(actions) or (f"delete at {_minute(min(times))}" if times else "")


def _minute(timestamp_ms: int) -> str:
    """Return a timestamp as text without seconds, for narrow columns."""
    text = moment(timestamp_ms)
    return f"{text[:-8]}Z" if text.endswith("Z") else text
