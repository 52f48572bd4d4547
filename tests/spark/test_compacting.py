"""Compaction on Spark: one task for each small log, and several tasks that exchange keys for a larger one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratalog import Record, open_engine
from stratalog.errors import ConfigError, FencedEpochError, StorageError, UnknownTopicError
from stratalog.extensions import extension
from stratalog_spark.jobs import compact, packing, runs
from stratalog_spark.jobs.packing import split_buckets
from stratalog_spark.keys import newest
from stratalog_spark.keys.newest import Newest
from tier_jobs import COMPACTED, Frame, fill, read, run_here, some, versions


@pytest.fixture(params=["a task a log", "tasks that tell each other keys"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select how logs are compacted: as small logs, one task for each, or as larger ones, with several tasks."""
    if request.param != "a task a log":
        monkeypatch.setattr(compact, "ALONE_RECORDS", 0)
    return str(request.param)


@pytest.mark.parametrize("held", [None, 1 << 20, 64])
def test_compaction_leaves_the_newest_of_each_key_by_one_commit(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int | None
) -> None:
    monkeypatch.setattr(compact, "ALONE_RECORDS", 600 if held is None else 0)
    monkeypatch.setattr(compact, "_TABLE_KEYS", held)
    monkeypatch.setattr(runs, "SMALLEST_RUN_BYTES", 10_000)
    uri = fill(tmp_path, some, COMPACTED)
    before, commits = [read(uri, partition) for partition in (0, 1)], versions(uri)
    compaction = jobs.compact(None, uri, topics=["orders"], take_over=True)
    for partition, rows in enumerate(before):
        newest = {row.key: row for row in rows if row.key is not None}
        assert read(uri, partition) == sorted(newest.values(), key=lambda row: row.offset)
    assert versions(uri) == [commit + 1 for commit in commits]
    assert (compaction.records_before, compaction.records_after) == (1200, 180)
    assert (compaction.shuffled_bytes > 0) == (held is not None)
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        log = engine.log("orders", 0)
        assert log.offsets().log_end == 600
        log.append([Record(key=b"key-1", value=b"later")])
        assert [row.offset for row in log.records()][-1] == 600


@pytest.mark.usefixtures("both_ways")
def test_compaction_of_what_is_compact_changes_no_record(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, COMPACTED)
    jobs.compact(None, uri, topics=["orders"], take_over=True)
    compacted_records = read(uri)
    second_compaction = jobs.compact(None, uri, topics=["orders"])
    assert read(uri) == compacted_records
    assert second_compaction.records_before == second_compaction.records_after
    assert all(log_result.segments_after <= log_result.segments_before for log_result in second_compaction.logs)


@pytest.mark.usefixtures("both_ways")
def test_tombstones_stay_until_they_were_seen_for_long(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(_: int) -> Iterable[Record]:
        for number in range(200):
            yield Record(timestamp_ms=number, key=b"k%d" % (number % 20), value=None if number > 189 else b"v")

    uri = fill(tmp_path, rows, {**COMPACTED, "delete.retention.ms": 60_000})
    jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert sum(row.value is None for row in read(uri)) == 10
    jobs.compact(None, uri, topics=["orders"])
    assert sum(row.value is None for row in read(uri)) == 10

    class Later:
        class clock:  # noqa: N801 - stands for an attribute
            @staticmethod
            def now_ms() -> int:
                return 1 << 42

    monkeypatch.setattr(compact, "Env", Later)
    jobs.compact(None, uri, topics=["orders"])
    assert [row.key for row in read(uri)] == [b"k%d" % number for number in range(10)]


@pytest.mark.usefixtures("both_ways")
def test_aborted_records_neither_stay_nor_hide_others(jobs: Any, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    with open_engine(tmp_path / "data", tier=tier.as_uri()) as engine:
        engine.create_topic("orders", config=COMPACTED)
        with engine.producer(transactional_id="t") as producer:
            for number in range(30):
                producer.begin_transaction()
                producer.send("orders", key=b"k%d" % (number % 10), value=b"v%d" % number)
                producer.flush()
                producer.commit_transaction() if number < 20 else producer.abort_transaction()
        engine.log("orders", 0).roll()
        engine.offload()
    jobs.compact(None, tier.as_uri(), topics=["orders"], take_over=True)
    assert [row.value for row in read(tier.as_uri())] == [b"v%d" % number for number in range(10, 20)]


def test_nothing_is_compacted_that_should_not_be(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, {"segment.bytes": 4_000, "retention.ms": -1})
    commits = versions(uri)
    with pytest.raises(ConfigError, match="does not contain compact"):
        jobs.compact(None, uri, topics=["orders"], take_over=True)
    with pytest.raises(FencedEpochError, match="take-over option"):
        jobs.compact(None, uri, topics=["orders"], any_policy=True)
    with pytest.raises(UnknownTopicError):
        jobs.compact(None, uri, topics=["strangers"], take_over=True)
    with pytest.raises(ConfigError, match="give its URI"):
        jobs.compact(None, str(tmp_path / "data"), topics=["orders"])
    assert versions(uri) == commits


@pytest.mark.usefixtures("both_ways")
def test_an_engine_that_writes_meanwhile_is_not_overwritten(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = fill(tmp_path, some, COMPACTED)
    publish: Callable[..., Any] = vars(compact)["publish"]

    def late(*arguments: Any, **options: Any) -> Any:
        with open_engine(tmp_path / "other", tier=uri, attach=True) as engine:
            engine.log("orders", 0).append([Record(key=b"key-1", value=b"of the engine")])
            engine.log("orders", 0).roll()
            engine.offload()
        return publish(*arguments, **options)

    monkeypatch.setattr(compact, "publish", late)
    before = read(uri)
    with pytest.raises(StorageError):
        jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert read(uri)[:600] == before
    assert read(uri)[600].value == b"of the engine"


def test_small_logs_and_large_ones_are_compacted_together(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each log has one commit, and only after all tasks have ended."""
    monkeypatch.setattr(compact, "ALONE_RECORDS", 300)
    uri = fill(tmp_path, lambda partition: list(some(partition))[: 600 if partition else 300], COMPACTED)
    before, commits = [read(uri, partition) for partition in (0, 1)], versions(uri)
    monkeypatch.setattr(compact.CompactionWork, "write_run", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert [read(uri, partition) for partition in (0, 1)] == before
    monkeypatch.undo()
    monkeypatch.setattr(runs, "run_tasks", run_here)
    monkeypatch.setattr(compact.CompactionWork, "frame", lambda self, _: Frame(self))
    monkeypatch.setattr(compact, "ALONE_RECORDS", 300)
    compaction = jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert [
        log_result.records_before for log_result in sorted(compaction.logs, key=lambda log_result: log_result.log)
    ] == [300, 600]
    for partition, rows in enumerate(before):
        newest = {row.key: row for row in rows if row.key is not None}
        assert read(uri, partition) == sorted(newest.values(), key=lambda row: row.offset)
    assert versions(uri) == [commit + 1 for commit in commits]
    assert compaction.shuffled_bytes > 0


def test_messages_between_the_passes_lose_nothing() -> None:
    for start, gaps in ((0, [0]), (5, [1, 200, 3]), (9, [70_000, 1]), (1, [1 << 33, 2]), (7, [])):
        offsets = np.cumsum(np.array(gaps, np.int64)) + start
        assert packing.unpack_offsets(packing.pack_offsets(offsets, start), start).tolist() == offsets.tolist()
        hashes: Any = np.arange(2 * len(gaps), dtype=np.uint64).reshape(-1, 2)
        message = packing.pack_newest(Newest(hashes, offsets), start)
        unpacked = packing.unpack_newest(message, start)
        assert (unpacked.hashes.tolist(), unpacked.offsets.tolist()) == (hashes.tolist(), offsets.tolist())
    assert len(packing.pack_newest(Newest(np.zeros((100, 2), np.uint64), np.arange(100)), 0)) <= 100 * 20 + 16
    with pytest.raises(StorageError, match="install the same"):
        packing.unpack_newest(bytes([9]) + message[1:], 0)


@pytest.mark.parametrize("bits", [0, 1, 3, 17])
def test_each_bucket_gets_the_keys_that_begin_with_its_number(bits: int) -> None:
    hashes = np.random.default_rng(1).integers(1, 1 << 63, (500, 2), np.uint64, endpoint=True) * np.uint64(2)
    parts = split_buckets(Newest(hashes, np.arange(500)), bits)
    assert len(parts) == 1 << bits
    for number, part in enumerate(parts):
        assert all(high >> (64 - bits) == number for high in part.hashes[:, 0].tolist())
        assert hashes[part.offsets].tolist() == part.hashes.tolist()
    assert sorted(offset for part in parts for offset in part.offsets.tolist()) == list(range(500))


@pytest.fixture(params=["SortedKeys", "HashedKeys"])
def table(request: pytest.FixtureRequest) -> Any:
    """Return an empty table of keys in Python, or the compiled one if it was built."""
    if request.param == "HashedKeys" and extension("stratalog_spark.keys.newest_c") is None:
        pytest.skip("there is no compiled code here")
    return getattr(newest, request.param)()


def test_of_each_key_the_greatest_offset_stays_however_many_come(table: Any) -> None:
    assert table.rows().offsets.tolist() == []
    chance, expected = np.random.default_rng(5), dict[tuple[int, int], int]()
    for count in (0, 1, 9_000, 3, 200_000, 70_000):
        keys: Any = chance.integers(0, 40_000, count, np.uint64)
        hashes = np.stack((keys * np.uint64(0x9E3779B97F4A7C15), keys), axis=1)  # two zeros are not a valid hash
        offsets = chance.permutation(np.arange(count) + len(expected))
        table.add(hashes, offsets)
        for high, low, offset in zip(*hashes.T.tolist(), offsets.tolist(), strict=True):
            if high or low:
                expected[high, low] = max(offset, expected.get((high, low), -1))
        assert len(table) >= len(expected)
    newest = table.rows()
    assert dict(zip(map(tuple, newest.hashes.tolist()), newest.offsets.tolist(), strict=True)) == expected


def test_keys_that_agree_in_half_of_their_hash_are_two(table: Any) -> None:
    hashes = np.array([[1, 1], [1, 2], [1, 1], [0, 2], [1, 2], [1, 0], [0, 0]], np.uint64)
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]):
        table.add(hashes[order], np.array(order))
    assert sorted(table.rows().offsets.tolist()) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("slots", "hashes", "offsets", "held"),
    [
        (bytearray(24 * 3), bytes(16), bytes(8), 0),
        (bytearray(24 * 2 + 8), bytes(16), bytes(8), 0),
        (bytes(24 * 4), bytes(16), bytes(8), 0),
        (bytearray(24 * 4), bytes(16), bytes(16), 0),
        (bytearray(24 * 4), bytes(32), bytes(8), 0),
        (bytearray(24 * 4), bytes(16 * 4), bytes(8 * 4), 0),
        (bytearray(24 * 4), bytes(16), bytes(8), 3),
        (bytearray(24 * 4), bytes(16), bytes(8), -1),
        (bytearray(24 * 4), bytes(16), bytes(7), 0),
    ],
)
def test_a_table_that_has_no_room_or_no_shape_is_not_written(
    slots: bytearray, hashes: bytes, offsets: bytes, held: int
) -> None:
    kernel = extension("stratalog_spark.keys.newest_c")
    if kernel is None:
        pytest.skip("there is no compiled code here")
    with pytest.raises((ValueError, TypeError)):
        kernel.put(slots, hashes, offsets, held)
    assert not any(slots)
