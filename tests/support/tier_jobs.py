"""Jobs that replace segments of a tier, and tiers for them. The tasks run in this process, without Spark."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stratalog_spark
from stratalog import Record, open_engine, open_reader
from stratalog_spark.jobs import compact, erase, runs
from stratalog_spark.tasks.messages import Message

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 4_000, "retention.ms": -1}


def run_here(
    _spark: object, tasks: Sequence[Any], work: Callable[[Any], Any], *, task: Any, result: Any, **_: object
) -> list[Any]:
    """Replace ``run_tasks``: run each task twice, as Spark does with slow tasks. Tasks and results pass as messages."""
    task_message, result_message = Message(task), Message(result)
    packed_tasks = [task_message.pack(item) for item in tasks]
    for item in packed_tasks:
        work(task_message.unpack(item))
    return [result_message.unpack(result_message.pack(work(task_message.unpack(item)))) for item in packed_tasks]


class Frame:
    """Replacement of the Spark data frame with which a compaction runs its three steps."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def toArrow(self) -> Any:  # noqa: N802 - Spark's name
        work = pickle.loads(pickle.dumps(self._work))  # noqa: S301 - made just now
        numbers = range(len(work.runs))
        hashed = pa.Table.from_batches([batch for number in numbers for batch in work.hash_run(number, [7, 8])])
        kept_rows = pa.concat_tables(work.merge_bucket(group, list(numbers)) for group in groups(hashed, "bucket"))
        return pa.concat_tables(work.write_run(group) for group in groups(kept_rows, "run"))


def groups(table: Any, name: str) -> Iterable[Any]:
    for value in pc.unique(table[name]).to_pylist():
        group = table.filter(pc.equal(table[name], value))
        order = list(range(group.num_rows))
        random.Random(str(value)).shuffle(order)  # noqa: S311 - messages come in any order, the same in every run
        yield group.take(order)


def without_spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Patch the jobs to run their tasks in this process. Each bucket of a compaction has 200 records."""
    for module in (runs, erase):
        monkeypatch.setattr(module, "run_tasks", run_here)
    monkeypatch.setattr(compact.CompactionWork, "frame", lambda self, _: Frame(self))
    monkeypatch.setattr(compact, "BUCKET_RECORDS", 200)
    return stratalog_spark


def fill(
    folder: Path,
    rows: Callable[[int], Iterable[Record]],
    config: dict[str, object],
    *,
    partitions: int = 2,
    later: dict[str, object] | None = None,
) -> str:
    """Write a topic to a tier, stop the engine, and return the URI of the tier.

    ``later`` are settings that change after the records are appended.
    """
    tier = folder / "tier"
    tier.mkdir()
    with open_engine(folder / "data", tier=tier.as_uri()) as engine:
        initial_config = {name: value for name, value in config.items() if name != "cleanup.policy"}  # takes null keys
        engine.create_topic("orders", partitions=partitions, config=initial_config)
        for partition in range(partitions):
            log = engine.log("orders", partition)
            for row in rows(partition):
                log.append([row])
            log.roll()
        engine.alter_topic("orders", {**config, **(later or {})})
        engine.offload()
    return tier.as_uri()


def some(partition: int) -> Iterable[Record]:
    chance = random.Random(partition)  # noqa: S311 - the same in every run
    for number in range(600):
        key = None if number % 97 == 5 else b"key-%d" % chance.randrange(90)
        yield Record(timestamp_ms=1000 + number, key=key, value=b"v%d" % number, headers=(("h", b"%d" % number),))


def read(uri: str, partition: int = 0, **options: Any) -> list[Record]:
    with open_reader(uri, **options) as reader:
        return list(reader.log("orders", partition).records())


def versions(uri: str) -> list[int]:
    with open_reader(uri) as reader:
        remotes = [reader.log("orders", partition).view().remote for partition in (0, 1)]
        return [0 if remote is None else remote.version for remote in remotes]
