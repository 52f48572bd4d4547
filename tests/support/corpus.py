"""Topics that together use every feature of the record formats: their appends, and the records to read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import stratalog
from stratalog import Record, TimestampType

START_MS: Final = 1_700_000_000_000
CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
WORDS: Final = (b"alpha ", b"beta ", b"gamma ", b"delta ", b"order ", b"click ", b"page ", b"view ")
SMALL_SEGMENTS: Final = {"segment.bytes": 8192, "index.interval.bytes": 200}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, its settings, and the appends that fill its partition 0."""

    name: str
    config: Mapping[str, object] = field(default_factory=dict)
    appends: Sequence[Sequence[Record]] = ()

    @property
    def record_version(self) -> int:
        """Return the magic of the record format of the topic."""
        return int(str(self.config.get("record.version", 2)))


def some_records(name: str, count: int, *, headers: bool = True) -> Iterator[Record]:
    """Return ``count`` records, with null, empty and other keys and values, and unordered timestamps.

    The same ``name`` returns the same records.
    """
    for i in range(count):
        digest = hashlib.shake_256(f"{name}-{i}".encode()).digest(128)
        value = (
            b"".join(WORDS[byte % len(WORDS)] for byte in digest[64 : 64 + digest[0] % 48]) + digest[: digest[1] % 40]
        )
        yield Record(
            timestamp_ms=START_MS + i * 1000 + digest[2] * 16 - 2048,
            key=(None, b"", b"key-%d" % i)[min(digest[3] // 32, 2)],
            value=(None, b"", value)[min(digest[4] // 32, 2)],
            headers=tuple(_headers(digest)) if headers and digest[5] % 2 else (),
        )


def _headers(digest: bytes) -> Iterator[tuple[str, bytes | None]]:
    for j in range(1 + digest[6] % 3):
        yield ("trace", "größe", "trace")[j], (None, b"", digest[: digest[7 + j] % 30])[min(digest[10 + j] // 32, 2)]


def in_appends(records: Iterator[Record], *sizes: int) -> list[list[Record]]:
    """Split the records into appends. The numbers of records are ``sizes``, repeated as often as needed."""
    remaining_records = list(records)
    appends: list[list[Record]] = []
    while remaining_records:
        size = sizes[len(appends) % len(sizes)]
        appends.append(remaining_records[:size])
        remaining_records = remaining_records[size:]
    return appends


def topics() -> list[Topic]:
    """Return all topics of the corpus."""
    every = [
        Topic(
            f"v2-{codec}", {"compression.type": codec, **SMALL_SEGMENTS}, in_appends(some_records(codec, 400), 1, 7, 25)
        )
        for codec in CODECS
    ]
    every += [
        Topic(
            f"v{version}-{codec}",
            {"record.version": version, "compression.type": codec, **SMALL_SEGMENTS},
            in_appends(some_records(f"v{version}-{codec}", 150, headers=False), 1, 5, 30),
        )
        for version in (0, 1)
        for codec in ("uncompressed", "gzip", "snappy", "lz4")
    ]
    big = [Record(timestamp_ms=START_MS + i, key=b"%d" % i, value=WORDS[i] * 100_000) for i in range(3)]
    every += [
        Topic(
            "log-append-time",
            {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"},
            in_appends(some_records("log-append-time", 60), 1, 9),
        ),
        Topic("big-values", {"compression.type": "uncompressed"}, [[record] for record in big]),
        Topic("big-values-zstd", {"compression.type": "zstd"}, [big]),
        Topic("one-segment", {}, in_appends(some_records("one-segment", 200), 3, 50)),
    ]
    return every


def write(directory: Path, every: Sequence[Topic]) -> dict[str, list[Record]]:
    """Write the topics to ``directory`` with an engine that is closed and opened again after half of the appends.

    Returns:
        By topic, the records that a reader must return, without leader epochs.
    """
    expected: dict[str, list[Record]] = {topic.name: [] for topic in every}
    for half in (0, 1):
        with stratalog.open_engine(directory) as engine:
            for topic in every:
                if half == 0:
                    engine.create_topic(topic.name, config={"retention.ms": -1, **topic.config})
                middle = len(topic.appends) // 2
                appends = topic.appends[middle:] if half else topic.appends[:middle]
                for records in appends:
                    result = engine.log(topic.name, 0).append(records)
                    expected[topic.name] += as_read(topic, records, result)
    return expected


def as_read(topic: Topic, records: Sequence[Record], result: stratalog.AppendResult) -> Iterator[Record]:
    """Yield the appended ``records`` as a reader returns them.

    They have their offsets, and the timestamps that the topic's record format can store.
    """
    assert result.last_offset == result.base_offset + len(records) - 1
    for offset, record in enumerate(records, result.base_offset):
        stamp, kind = record.timestamp_ms, TimestampType.CREATE_TIME
        if topic.record_version == 0:
            stamp, kind = -1, TimestampType.NONE
        elif topic.config.get("message.timestamp.type") == "LogAppendTime":
            stamp, kind = result.append_time_ms, TimestampType.LOG_APPEND_TIME
        yield record._replace(offset=offset, timestamp_ms=stamp, timestamp_type=kind, partition=0)


def without_epochs(records: Sequence[Record] | Iterator[Record]) -> list[Record]:
    """Return the records without leader epochs, which a client of a broker does not receive."""
    return [record._replace(leader_epoch=-1) for record in records]
