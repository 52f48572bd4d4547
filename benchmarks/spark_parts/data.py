"""The logs that Spark reads: one large topic, one with many keys, one of very many small segments."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

from stratalog import Record, open_engine

PARTITIONS: Final = 4
TOPIC: Final = "topic"
VALUE: Final = bytes(range(100))
_BATCH_ROWS: Final = 1_000
_KEEP: Final = {"retention.ms": -1, "segment.bytes": 64 << 20}
_REPEATED_KEYS: Final = 10_000
_DAY_MS: Final = 1_790_000_000_000


def fill_large(folder: Path, rows: int) -> int:
    """Make a topic of 4 partitions, and return the number of its records.

    Keys repeat after 10,000 records of a partition. The timestamp of record n of a partition is n ms after the first
    one.
    """
    per_partition = rows // PARTITIONS // _BATCH_ROWS * _BATCH_ROWS
    with open_engine(folder) as engine:
        engine.create_topic(TOPIC, partitions=PARTITIONS, config=_KEEP)
        for partition in range(PARTITIONS):
            log = engine.log(TOPIC, partition)
            for start in range(0, per_partition, _BATCH_ROWS):
                numbers = range(start, start + _BATCH_ROWS)
                log.append(
                    [
                        Record(timestamp_ms=_DAY_MS + number, key=b"key-%06d" % (number % _REPEATED_KEYS), value=VALUE)
                        for number in numbers
                    ]
                )
    return per_partition * PARTITIONS


def hundredth(rows: int) -> tuple[int, int]:
    """Return a time range with 1 % of the records of each partition of ``fill_large``: [start, end) in ms."""
    last = rows // PARTITIONS
    return _DAY_MS + last // 2, _DAY_MS + last // 2 + last // 100


def fill_keys(folder: Path, rows: int, keys: int) -> None:
    """Make a topic of 4 partitions with the policy "compact" and random keys; nothing is compacted yet.

    Each key occurs in one partition only.
    """
    chance = random.Random(7)  # noqa: S311 - the same in every run
    with open_engine(folder) as engine:
        engine.create_topic(TOPIC, partitions=PARTITIONS, config={**_KEEP, "cleanup.policy": "compact"})
        for partition in range(PARTITIONS):
            log = engine.log(TOPIC, partition)
            for start in range(0, rows // PARTITIONS, _BATCH_ROWS):
                log.append(
                    [
                        Record(
                            timestamp_ms=_DAY_MS + start,
                            key=b"user-%012d" % (chance.randrange(keys // PARTITIONS) * PARTITIONS + partition),
                            value=VALUE,
                        )
                        for _ in range(_BATCH_ROWS)
                    ]
                )
            log.roll()


def tier_of(folder: Path, copy: Path, tier: Path) -> str:
    """Make a tier with all records of the directory ``folder``, and return its URI. The directory does not change."""
    shutil.copytree(folder, copy)
    tier.mkdir()
    with open_engine(copy, tier=tier.as_uri()) as engine:
        engine.alter_topic(TOPIC, {"remote.storage.enable": True})
        for name in engine.partitions():
            engine.log(*name).roll()
        engine.offload()
    shutil.rmtree(copy)
    return tier.as_uri()


def fill_small(folder: Path, segments: int) -> int:
    """Fill one partition with segments of 100 KB, and return their number."""
    with open_engine(folder) as engine:
        engine.create_topic(TOPIC, config={"segment.bytes": 100_000, "retention.ms": -1})
        log, rows = engine.log(TOPIC, 0), [Record(timestamp_ms=1, value=bytes(980)) for _ in range(100)]
        for _ in range(segments):
            log.append(rows)
        return len(log.segments())
