"""The work of a stream's driver for one trigger: the plan of the source, and the commits of the sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import pyarrow as pa

from stratalog import TopicPartition
from stratalog.writing import WriteMark, WriteTarget
from stratalog_spark.open_writers import close_kept
from stratalog_spark.options import Options, SinkOptions
from stratalog_spark.sink import publish, stage
from stratalog_spark.stream import Planner

_TOPIC = "triggered"


class Trigger(NamedTuple):
    """One trigger: partitions that changed, seconds of the commits and of the plan, and requests of the plan."""

    changed: int
    commit_seconds: float
    plan_seconds: float
    requests: int


def triggers(folder: Path, partitions: int, changes: Sequence[int]) -> Iterator[Trigger]:
    """Yield one trigger for each number of changed partitions, over a tier with ``partitions`` partitions."""
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
            message = stage(options, iter([pa.RecordBatch.from_pylist(rows)]), mark)
            begun = perf_counter()
            published = publish(options, [message], mark)
            commit_seconds = perf_counter() - begun
            assert len(published) == changed
        before, begun = tier.metrics().store.requests, perf_counter()
        end = planner.next(start, None)
        planner.report()
        splits = planner.splits(start, end) if end != start else []
        plan_seconds = perf_counter() - begun
        assert sum(len(split.pieces) for split in splits) == changed
        assert end[TopicPartition(_TOPIC, 0)] == start[TopicPartition(_TOPIC, 0)] + bool(changed)
        yield Trigger(changed, commit_seconds, plan_seconds, tier.metrics().store.requests - before)
        start = end
    planner.close()
    close_kept()


def tell_triggers(folder: Path, partitions: int) -> None:
    """Print triggers in which all partitions change, none, and a tenth of them."""
    for found in triggers(folder, partitions, (partitions, 0, partitions // 10, partitions, 0)):
        print(
            f"\nstream-trigger, {found.changed} of {partitions} partitions changed: plan {found.plan_seconds:.2f} s, "
            f"{found.requests} requests; commits {found.commit_seconds:.2f} s"
        )
