"""Compaction of a topic whose keys are ten times as large as the memory limit of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import stratalog_spark
from harness import Reporter
from spark_parts import small_worker
from spark_parts.data import TOPIC, tier_of
from stratalog import Record, open_engine, open_reader
from stratalog_spark.session import open_session

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

TIMES: Final = 10
_PARTITIONS: Final = 2
_BATCH_ROWS: Final = 500
_FOR_KEYS: Final = 8  # the memory for keys is the limit of a worker, divided by this number


@dataclass(frozen=True, slots=True)
class Size:
    """Memory limit of a worker in addition to its imports, and size of a key."""

    worker_bytes: int
    key_bytes: int

    @property
    def keys(self) -> int:
        """Number of keys whose total size is ten times the limit of a worker; an even number."""
        return -(-TIMES * self.worker_bytes // self.key_bytes // 2) * 2


def compact_small(reporter: Reporter, scratch: Path, master: str, size: Size) -> None:
    """Compact such a topic, and report the figures.

    Wrong results, and a memory limit without effect, raise AssertionError.
    """
    fill(scratch / "wide", size)
    tier = tier_of(scratch / "wide", scratch / "wide-copy", scratch / "wide-tier")
    settings = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": small_worker.__name__,
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent.parent),
        f"spark.executorEnv.{small_worker.VARIABLE}": str(size.worker_bytes),
        "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",  # other memory pools keep freed memory
    }
    session = open_session(master, settings)
    try:
        check_limit(session, size)
        start = perf_counter()
        memory_bytes = size.worker_bytes // _FOR_KEYS
        report = stratalog_spark.compact(session, tier, topics=[TOPIC], take_over=True, memory_bytes=memory_bytes)
        wall = perf_counter() - start
    finally:
        session.stop()
    check(tier, size)
    name = f"small/{size.worker_bytes >> 20}MiB"
    reporter.number(
        name, f"compaction with keys of {TIMES} times the memory of a worker", size.keys * size.key_bytes, "bytes"
    )
    reporter.number(name, "records before", report.records_before, "records")
    reporter.number(name, "records after", report.records_after, "records")
    reporter.number(
        name, "messages between tasks, for each record", report.shuffled_bytes / report.records_before, "bytes"
    )
    reporter.number(name, "wall time", wall, "s")


def fill(folder: Path, size: Size) -> None:
    """Write each key once, and then every other key a second time."""
    with open_engine(folder) as engine:
        config = {"retention.ms": -1, "segment.bytes": 4 << 20, "cleanup.policy": "compact", "compression.type": "zstd"}
        engine.create_topic(TOPIC, partitions=_PARTITIONS, config=config)
        for partition in range(_PARTITIONS):
            log = engine.log(TOPIC, partition)
            for value, step in ((b"old", 1), (b"new", 2)):
                numbers = range(partition, size.keys, _PARTITIONS)[::step]
                for start in range(0, len(numbers), _BATCH_ROWS):
                    log.append(
                        [
                            Record(timestamp_ms=start, key=b"%0*d" % (size.key_bytes, number), value=value)
                            for number in numbers[start : start + _BATCH_ROWS]
                        ]
                    )
            log.roll()


def check_limit(session: Any, size: Size) -> None:
    """Check that a worker cannot allocate more than its limit."""

    def greedy(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            try:
                bytearray(size.worker_bytes + (1 << 20))
            except MemoryError:
                yield batch

    refused_count = session.range(0, 1, 1, 1).mapInArrow(greedy, "id bigint").count()
    assert refused_count == 1, "workers have more memory than was said"


def check(tier: str, size: Size) -> None:
    """Check that only the latest record of each key remains."""
    with open_reader(tier) as reader:
        for partition in range(_PARTITIONS):
            remaining = {int(record.key or b""): record.value for record in reader.log(TOPIC, partition).records()}
            numbers = range(partition, size.keys, _PARTITIONS)
            assert remaining == dict.fromkeys(numbers, b"old") | dict.fromkeys(numbers[::2], b"new")
