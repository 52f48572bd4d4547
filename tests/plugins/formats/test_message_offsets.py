"""Offsets inside compressed messages: absolute in magic 0, relative in magic 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Record, open_engine

CODECS = ("gzip", "snappy", "lz4")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("as_batches", [False, True])
def test_every_message_of_later_wrappers_has_its_own_offset(
    tmp_path: Path, version: int, codec: str, *, as_batches: bool
) -> None:
    """In an earlier release, wrappers of magic 0 got an offset, but their messages kept 0, 1, 2.

    DumpLogSegments and librdkafka showed these wrong offsets.
    """
    sizes = (3, 1, 4)
    record_lists = [
        [Record(timestamp_ms=10 + i, key=b"%d" % i, value=bytes(40)) for i in range(size)] for size in sizes
    ]
    config = {"record.version": version, "compression.type": codec}
    with open_engine(tmp_path) as engine:
        for topic in ("orders", "copy"):
            engine.create_topic(topic, config=config)
        log = engine.log("orders", 0)
        for records in record_lists:
            log.append(records)
        if as_batches:
            with log.fetch(0) as fetched:
                encoded = fetched.read()
            log = engine.log("copy", 0)
            assert log.append_as_leader(encoded).last_offset == sum(sizes) - 1
        log_records = list(log.records())
    assert [record.offset for record in log_records] == list(range(sum(sizes)))
    assert [record.key for record in log_records] == [record.key for records in record_lists for record in records]


def test_a_wrapper_compressed_a_thousand_times_gets_its_offset(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("zeros", config={"record.version": 0, "compression.type": "gzip"})
        log = engine.log("zeros", 0)
        for _ in range(2):
            log.append([Record(value=bytes(900_000))])
        assert [(record.offset, len(record.value or b"")) for record in log.records()] == [(0, 900_000), (1, 900_000)]
