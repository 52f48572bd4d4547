"""Jobs that replace segments of a tier: erase, convert, merge. Their tasks run in this process, not on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.errors import ConfigError, FencedEpochError, StorageError
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog_spark.jobs import erase, runs
from tier_jobs import fill, read, run_here, some, versions


def test_erased_keys_are_gone_and_nothing_else(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, {"segment.bytes": 4_000, "retention.ms": -1})
    before, keys = [read(uri, partition) for partition in (0, 1)], [b"key-3", b"key-40", b"nobody"]
    dry_run = jobs.erase(None, uri, keys, dry_run=True)
    assert [read(uri, partition) for partition in (0, 1)] == before
    erasure = jobs.erase(None, uri, keys, take_over=True)
    remaining = [[row for row in rows if row.key not in keys] for rows in before]
    assert [read(uri, partition) for partition in (0, 1)] == remaining
    erased_count = sum(len(rows) for rows in before) - sum(len(rows) for rows in remaining)
    assert sum(dry_run.records.values()) == sum(erasure.records.values()) == erased_count > 0
    assert sum(log_result.records_before - log_result.records_after for log_result in erasure.logs) == erased_count
    assert jobs.erase(None, uri, keys).records == {}
    with pytest.raises(ConfigError, match="no keys to erase"):
        jobs.erase(None, uri, [])


def test_keys_that_exceed_the_memory_are_erased_in_rounds(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = fill(tmp_path, some, {"segment.bytes": 4_000, "retention.ms": -1})
    before = [read(uri, partition) for partition in (0, 1)]
    erased_keys = sorted({row.key for rows in before for row in rows if row.key is not None})[::2]
    assert len(erased_keys) > 40
    keys_read, key_counts = list[bytes](), list[int]()

    def keys() -> Iterator[bytes]:
        for key in [*erased_keys, *erased_keys[:5]]:
            keys_read.append(key)
            yield key

    def noted(*arguments: Any, **keywords: Any) -> Any:
        key_counts.append(len(keys_read))
        return run_here(*arguments, **keywords)

    monkeypatch.setattr(erase, "run_tasks", noted)
    erasure = jobs.erase(None, uri, keys(), take_over=True, memory_bytes=1024)
    assert [read(uri, partition) for partition in (0, 1)] == [
        [row for row in rows if row.key not in erased_keys] for rows in before
    ]
    assert sum(erasure.records.values()) == sum(row.key in erased_keys for rows in before for row in rows)
    steps = [end - start for start, end in pairwise([0, *key_counts])]
    assert max(steps) == 16, "each round has read as many keys as 1 KiB holds"
    assert sum(steps) == len(keys_read) == len(erased_keys) + 5
    with pytest.raises(ConfigError, match="1024 bytes of memory or more"):
        jobs.erase(None, uri, erased_keys, memory_bytes=1023)


def test_only_segments_with_the_keys_are_rewritten(jobs: Any, tmp_path: Path) -> None:
    def rows(_: int) -> Iterable[Record]:
        return (Record(timestamp_ms=n, key=b"gone" if n in {3, 300} else b"k", value=bytes(30)) for n in range(500))

    uri = fill(tmp_path, rows, {"segment.bytes": 2_000, "retention.ms": -1}, partitions=1)
    objects = {path.name for path in (tmp_path / "tier").rglob("*.seg")}
    erasure = jobs.erase(None, uri, [b"gone"], take_over=True)
    assert (erasure.segments, len(erasure.logs), sum(log_result.segments_before for log_result in erasure.logs)) == (
        2,
        2,
        2,
    )
    assert len({path.name for path in (tmp_path / "tier").rglob("*.seg")} - objects) >= 2


def test_keys_below_the_log_start_are_erased(jobs: Any, tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    uri = (tmp_path / "tier").as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders")
        log = engine.log("orders")
        log.append([Record(key=b"key-%d" % number) for number in range(10)])
        log.roll()
        engine.offload()
        log.delete_records(before=5)
        log.append([Record(key=b"later")])
        log.roll()
        engine.offload()
    erasure = jobs.erase(None, uri, [b"key-3"], take_over=True)
    assert (erasure.records, erasure.segments) == ({TopicPartition("orders", 0): 1}, 1)
    with open_reader(uri) as reader:
        remote = reader.log("orders").view().remote
        assert remote is not None
        data = b"".join(bytes(segment.read(0, segment.size_bytes)) for segment in remote.segments)
    assert (b"key-2" in data, b"key-3" in data) == (True, False)
    assert [record.key for record in read(uri)] == [*(b"key-%d" % number for number in range(5, 10)), b"later"]


def test_an_erasure_fails_if_segments_with_its_keys_were_merged_meanwhile(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(_: int) -> Iterable[Record]:
        return (Record(timestamp_ms=n, key=b"gone" if n == 300 else b"k", value=bytes(30)) for n in range(500))

    config: dict[str, object] = {"segment.bytes": 2_000, "retention.ms": -1}
    uri = fill(tmp_path, rows, config, partitions=1, later={"segment.bytes": 1 << 20})

    def merged_after(*arguments: Any, **keywords: Any) -> Any:
        results = run_here(*arguments, **keywords)
        jobs.merge(None, uri, take_over=True)
        return results

    with monkeypatch.context() as patched:
        patched.setattr(erase, "run_tasks", merged_after)
        with pytest.raises(StorageError, match="run it again"):
            jobs.erase(None, uri, [b"gone"], take_over=True)
    assert any(row.key == b"gone" for row in read(uri))
    jobs.erase(None, uri, [b"gone"], take_over=True)
    assert not any(row.key == b"gone" for row in read(uri))


def test_old_messages_become_batches_with_the_same_records(jobs: Any, tmp_path: Path) -> None:
    def rows(partition: int) -> Iterable[Record]:
        return (Record(timestamp_ms=row.timestamp_ms, key=row.key, value=row.value) for row in some(partition))

    config = {"segment.bytes": 4_000, "retention.ms": -1, "record.version": 1, "compression.type": "gzip"}
    uri = fill(tmp_path, rows, config)
    before = read(uri)
    jobs.convert(None, uri, topics=["orders"], take_over=True)
    assert [(row.offset, row.timestamp_ms, row.key, row.value) for row in read(uri)] == [
        (row.offset, row.timestamp_ms, row.key, row.value) for row in before
    ]
    assert magics(uri) == {2}
    commits, objects = versions(uri), set((tmp_path / "tier").rglob("*.seg"))
    assert jobs.convert(None, uri, topics=["orders"]).logs == ()
    assert (versions(uri), set((tmp_path / "tier").rglob("*.seg"))) == (commits, objects)


def test_a_second_conversion_writes_only_new_records(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, {"segment.bytes": 4_000, "retention.ms": -1})
    first_conversion = jobs.convert(None, uri, topics=["orders"], compression="zstd", take_over=True)
    assert [log_result.log.partition for log_result in first_conversion.logs] == [0, 1]
    objects = set((tmp_path / "tier").rglob("*.seg"))
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        log = engine.log("orders", 0)
        log.append([Record(timestamp_ms=1, key=b"late", value=bytes(100))])
        log.roll()
        engine.offload()
    before = read(uri)
    [late] = set((tmp_path / "tier").rglob("*.seg")) - objects
    [second_conversion] = jobs.convert(None, uri, topics=["orders"], compression="zstd", take_over=True).logs
    assert (second_conversion.log.partition, second_conversion.segments_before, second_conversion.records_before) == (
        0,
        1,
        1,
    )
    assert 0 < second_conversion.bytes_after < second_conversion.bytes_before
    new_names = {path.name[:20] for path in set((tmp_path / "tier").rglob("*.seg")) - objects - {late}}
    assert new_names == {f"{600:020}"}
    assert read(uri) == before


def test_another_codec_and_layout_lose_nothing(jobs: Any, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    uri = tier.as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders", partitions=2, config={"segment.bytes": 4_000, "retention.ms": -1})
        with engine.producer(transactional_id="t") as producer:
            for number in range(40):
                producer.begin_transaction()
                producer.send("orders", key=b"k%d" % number, value=bytes(100), partition=number % 2)
                producer.flush()
                producer.abort_transaction() if number % 5 == 4 else producer.commit_transaction()
        for partition in (0, 1):
            engine.log("orders", partition).roll()
        engine.offload()
    before = [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")]
    conversion = jobs.convert(None, uri, topics=["orders"], compression="zstd", layout="chunked", take_over=True)
    assert [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")] == before
    assert sum(log_result.bytes_after for log_result in conversion.logs) < sum(
        log_result.bytes_before for log_result in conversion.logs
    )
    assert layouts(uri) == {"chunked@1"}
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        assert [row.offset for row in engine.log("orders", 0).records()] == [row[0] for row in before[0][0]]
    with pytest.raises(StorageError):
        jobs.convert(None, uri, topics=["orders"], layout="nobody", take_over=True)


def test_small_segments_become_fewer_and_no_byte_changes(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SMALLEST_RUN_BYTES", 20_000)
    uri = fill(tmp_path, some, {"segment.bytes": 1_500, "retention.ms": -1}, later={"segment.bytes": 15_000})
    with pytest.raises(FencedEpochError, match="take-over option"):
        jobs.merge(None, uri)
    before, commits = [raw(uri, partition) for partition in (0, 1)], versions(uri)
    merge_result = jobs.merge(None, uri, topics=["orders"], segment_bytes=6_000, take_over=True)
    assert [raw(uri, partition) for partition in (0, 1)] == before
    assert versions(uri) == [commit + 1 for commit in commits]
    for log_result in merge_result.logs:
        assert log_result.segments_after <= log_result.segments_before / 3
        assert log_result.records_before == log_result.records_after == 600
        assert log_result.bytes_before == log_result.bytes_after
    objects = set((tmp_path / "tier").rglob("*.seg"))
    assert jobs.merge(None, uri, segment_bytes=6_000).logs == ()
    assert set((tmp_path / "tier").rglob("*.seg")) == objects
    assert jobs.merge(None, uri).logs != (), "up to segment.bytes of the topic"
    assert jobs.merge(None, uri).logs == ()
    with pytest.raises(ConfigError, match="at least 1 byte"):
        jobs.merge(None, uri, segment_bytes=0)
    with open_engine(tmp_path / "third", tier=uri, attach=True) as engine:
        assert [row.offset for row in engine.log("orders", 0).records()] == list(range(600))


def test_aborted_transactions_stay_hidden_in_merged_segments(jobs: Any, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    uri = tier.as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders", partitions=2, config={"retention.ms": -1})
        with engine.producer(transactional_id="t") as producer:
            for number in range(30):
                producer.begin_transaction()
                producer.send("orders", key=b"k%d" % number, value=bytes(100), partition=number % 2)
                producer.flush()
                engine.log("orders", number % 2).roll()  # the marker is in the next segment
                producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()
        for partition in (0, 1):
            engine.log("orders", partition).roll()
        engine.offload()
    before = [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")]
    assert before[0] != before[1]
    merge_result = jobs.merge(None, uri, take_over=True)
    assert [(log_result.segments_before > 10, log_result.segments_after) for log_result in merge_result.logs] == [
        (True, 1),
        (True, 1),
    ]
    assert [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")] == before


def raw(uri: str, partition: int) -> bytes:
    """Return the bytes of all batches of a log."""
    with open_reader(uri) as reader:
        log, offset, data = reader.log("orders", partition), 0, b""
        while (fetched := log.fetch(offset, max_bytes=1 << 20)).slices:
            data += fetched.read()
            offset = fetched.next_offset
        return data


def shown(uri: str, isolation: str) -> list[list[tuple[object, ...]]]:
    with open_reader(uri) as reader:
        logs = [reader.log("orders", partition) for partition in (0, 1)]
        return [[(row.offset, row.key, row.value) for row in log.records(isolation=isolation)] for log in logs]


def magics(uri: str) -> set[int]:
    with open_reader(uri) as reader:
        log = reader.log("orders", 0)
        return {log.fetch(offset, max_bytes=1).read()[16] for offset in range(0, 600, 7)}


def layouts(uri: str) -> set[str]:
    with open_reader(uri) as reader:
        remote = reader.log("orders", 0).view().remote
        assert remote is not None
        return {segment.entry.layout for segment in remote.segments if isinstance(segment, RemoteSegment)}
