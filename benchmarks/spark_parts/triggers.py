"""The work of the driver of a stream for one trigger: the plan of the source, and the commits of the sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import NamedTuple

import pyarrow as pa

from harness import Reporter
from stratalog import TopicPartition
from stratalog.writing import WriteMark, WriteTarget
from stratalog_spark.options.read_options import Options
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.read.stream_planner import Planner
from stratalog_spark.write.open_writers import close_kept
from stratalog_spark.write.sink import Written, publish
from stratalog_spark.write.stage import stage

_TOPIC = "triggered"


class Trigger(NamedTuple):
    """One trigger: number of changed partitions, processor seconds of commits and plan, store requests of the plan."""

    changed: int
    commit_seconds: float
    plan_seconds: float
    requests: int


def triggers(folder: Path, partitions: int, changes: Sequence[int]) -> Iterator[Trigger]:
    """Yield one trigger for each number in ``changes``: so many of the partitions change before it.

    The tier in ``folder`` has ``partitions`` partitions.
    """
    folder.mkdir()
    options = SinkOptions({"path": folder.as_uri(), "topic": _TOPIC, "mergeBytes": "0"})
    with WriteTarget(folder.as_uri()).open() as writer:
        writer.create_topic(_TOPIC, partitions)
    planner = Planner(Options({"path": folder.as_uri(), "subscribe": _TOPIC}, streaming=True))
    start = planner.first()
    tier = planner.reader().tier
    assert tier is not None  # the path is a URI
    for number, changed in enumerate(changes):
        rows = [{"value": b"%d" % row, "partition": row} for row in range(changed)]
        commit_seconds = 0.0
        if rows:
            mark = WriteMark("query", number)
            message = Written(stage(options, [pa.RecordBatch.from_pylist(rows)]), mark)
            began_s = process_time()
            published = publish(options, [message], mark)
            commit_seconds = process_time() - began_s
            assert len(published) == changed
        before, began_s = tier.metrics().store.requests, process_time()
        end = planner.next(start, None)
        planner.report()
        splits = planner.splits(start, end) if end != start else []
        plan_seconds = process_time() - began_s
        assert sum(len(split.pieces) for split in splits) == changed
        assert end[TopicPartition(_TOPIC, 0)] == start[TopicPartition(_TOPIC, 0)] + bool(changed)
        yield Trigger(changed, commit_seconds, plan_seconds, tier.metrics().store.requests - before)
        start = end
    planner.close()
    close_kept()


def report_triggers(reporter: Reporter, folder: Path, partitions: int) -> None:
    """Report five triggers, in which all partitions change, none, a tenth of them, all, and none."""
    for number, trigger in enumerate(triggers(folder, partitions, (partitions, 0, partitions // 10, partitions, 0))):
        name, title = (
            f"stream-trigger/{number}-{trigger.changed}",
            f"{trigger.changed} of {partitions} partitions changed",
        )
        reporter.number(name, f"{title}: requests of the plan", trigger.requests, "requests")
        reporter.number(name, f"{title}: processor time of the plan", trigger.plan_seconds, "s")
        reporter.number(name, f"{title}: processor time of the commits", trigger.commit_seconds, "s")
