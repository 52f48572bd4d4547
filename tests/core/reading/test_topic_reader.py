"""Reads of all partitions of a topic: to Arrow in one stream, and record by record as the topic grows."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog import Reader, Record, open_engine, open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptBatchError,
    CorruptCheckpointError,
    OffsetOutOfRangeError,
    PluginImportError,
    SegmentGoneError,
    UnknownTopicError,
    WrongTypeError,
)
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.load.log_loader import load
from stratalog.log.read.log_reader import LogReader

START_MS = 1_700_000_000_000
ROWS = [(partition, offset) for partition in range(3) for offset in range(50)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with three partitions of 50 records, a second apart, in batches of 10."""
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", partitions=3, config={"segment.bytes": 1000, "retention.ms": -1})
        for partition in range(3):
            for first in range(0, 50, 10):
                engine.log("orders", partition).append(
                    [
                        Record(timestamp_ms=START_MS + 1000 * n, key=b"%d" % n, value=b"%d-%d" % (partition, n))
                        for n in range(first, first + 10)
                    ]
                )
    return tmp_path / "data"


def rows(table: Any) -> list[tuple[int, int]]:
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_a_scan_has_the_records_of_all_partitions(folder: Path) -> None:
    with open_reader(folder) as reader:
        scan = reader.topic("orders").scan()
        assert rows(scan.to_arrow()) == ROWS
        assert scan.to_arrow().equals(scan.reader().read_all())
        assert pa.table(scan).equals(scan.to_arrow())  # pyarrow calls __arrow_c_stream__
        assert pa.Table.from_batches(scan.batches()).equals(scan.to_arrow())


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"partitions": [1]}, [row for row in ROWS if row[0] == 1]),
        ({"start": 47}, [row for row in ROWS if row[1] >= 47]),
        ({"start": {0: 49}, "end": {1: 0, 2: 1}}, [(0, 49), (2, 0)]),
        ({"start": 10, "end": 13, "partitions": {2, 0}}, [(p, n) for p in (0, 2) for n in (10, 11, 12)]),
        ({"since": START_MS + 48_500}, [row for row in ROWS if row[1] >= 49]),
        (
            {"since": dt.datetime.fromtimestamp(START_MS / 1000 + 48, dt.UTC), "start": 5},
            [r for r in ROWS if r[1] >= 48],
        ),
        ({"since": START_MS + 99_000}, []),
        ({"start": 1 << 60}, []),
    ],
)
def test_a_scan_may_be_of_a_part(folder: Path, chosen: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    with open_reader(folder) as reader:
        scan = reader.topic("orders").scan(columns=["partition", "offset"], **chosen)
        assert rows(scan.to_arrow()) == expected
        assert rows(scan.reader().read_all()) == expected
        assert scan.to_arrow().schema == scan.schema


def test_columns_are_in_the_order_that_was_asked_for(folder: Path) -> None:
    with open_reader(folder) as reader:
        table = reader.topic("orders").scan(columns=["value", "offset"], partitions=[2], start=48).to_arrow()
        assert table.to_pydict() == {"value": [b"2-48", b"2-49"], "offset": [48, 49]}


def test_a_scan_without_columns_has_the_number_of_records(folder: Path) -> None:
    with open_reader(folder) as reader:
        scan = reader.topic("orders").scan(columns=[])
        assert scan.to_arrow().num_rows == scan.reader().read_all().num_rows == len(ROWS)
        assert scan.to_arrow().schema == scan.schema
        assert reader.topic("orders").scan(columns=[], start=1 << 60).to_arrow().num_rows == 0


def test_a_scan_sees_the_isolation_level(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        for commits in (True, False):
            with engine.producer(transactional_id="x") as producer:
                producer.begin_transaction()
                producer.send("t", value=b"%d" % commits)
                producer.flush()
                producer.commit_transaction() if commits else producer.abort_transaction()
    with open_reader(tmp_path / "data") as reader:
        for isolation, expected in (("read_uncommitted", [b"1", b"0"]), ("read_committed", [b"1"])):
            scan = reader.topic("t").scan(columns=["value"], isolation=isolation)
            assert scan.to_arrow()["value"].to_pylist() == scan.reader().read_all()["value"].to_pylist() == expected


def test_a_damaged_end_is_reported(folder: Path) -> None:
    file = max((folder / "orders-1").glob("*.log"))
    file.write_bytes(file.read_bytes()[:-1])
    with open_reader(folder) as reader:
        topic = reader.topic("orders")
        for read_table in (topic.scan().to_arrow, lambda: list(topic.scan().batches()), topic.dataset().to_table):
            with pytest.raises(CorruptBatchError):
                read_table()
        end = reader.log("orders", 1).offsets().log_end
        for scan in (topic.scan(partitions=[0, 2]), topic.scan(end=end)):
            assert scan.to_arrow().num_rows >= 80


def test_wrong_arguments_are_named(folder: Path) -> None:
    with open_reader(folder) as reader:
        topic = reader.topic("orders")
        with pytest.raises(ConfigError, match=r"no column 'values': .*, leader_epoch; did you mean 'value'\?$"):
            topic.scan(columns=["values"])
        with pytest.raises(UnknownTopicError, match="no partition 7: it has 0, 1, 2"):
            topic.scan(partitions=[0, 7])
        with pytest.raises(ConfigError, match="isolation"):
            topic.scan(isolation="committed")
        with pytest.raises(ConfigError, match="time zone"):
            topic.scan(since=dt.datetime(2024, 1, 1))  # noqa: DTZ001 - the mistake
        with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
            reader.topic("order")
        with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
            reader.topic("or")
    with pytest.raises(ClosedError):
        reader.topic("orders")


@pytest.mark.parametrize(("library", "call"), [("pandas", "to_pandas"), ("polars", "to_polars")])
def test_a_missing_library_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, library: str, call: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with open_reader(folder) as reader, pytest.raises(PluginImportError, match=rf"stratalog\[{library}\]"):
        getattr(reader.topic("orders").scan(), call)()


# --- following a directory -----------------------------------------------------------------------------------------


def values(reader: Reader) -> list[bytes | None]:
    return [record.value for record in reader.log("t", 0).records()]


def test_a_reader_follows_the_directory_of_a_running_engine(tmp_path: Path) -> None:
    """A reader sees records from the next high watermark checkpoint on."""
    with open_engine(tmp_path, env=Env(clock=ManualClock())) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        log.append([Record(value=b"0")])
        engine.flush()
        with open_reader(tmp_path) as reader:
            assert values(reader) == [b"0"]
            running_read = reader.log("t", 0).records()
            log.append([Record(value=b"1")])
            log.roll()
            assert reader.refresh() in {(), (("t", 0),)}
            assert values(reader) == [b"0"]
            engine.flush()
            assert reader.refresh() == (("t", 0),)
            assert values(reader) == [b"0", b"1"]
            assert [record.value for record in running_read] == [b"0", b"1"]
            assert reader.refresh() == ()
            engine.create_topic("u")
            assert reader.refresh() == ()
            assert sorted(reader.topics()) == ["t", "u"]


def test_a_refresh_after_a_failed_one_shows_the_changes(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"0")])
    with open_reader(tmp_path) as reader:
        assert values(reader) == [b"0"]
        with open_engine(tmp_path) as engine:
            engine.log("t", 0).append([Record(value=b"1")])
        file = tmp_path / "t-0" / "leader-epoch-checkpoint"
        data = file.read_bytes()
        file.write_bytes(b"?" * len(data))
        with pytest.raises(CorruptCheckpointError):
            reader.refresh()
        assert values(reader) == [b"0"]
        file.write_bytes(data)
        assert reader.refresh() == (("t", 0),)
        assert values(reader) == [b"0", b"1"]


def test_segments_that_a_writer_deleted_leave_the_view(tmp_path: Path) -> None:
    with open_engine(tmp_path, env=Env(clock=ManualClock())) as engine:
        engine.create_topic("t", config={"file.delete.delay.ms": 0})
        log = engine.log("t", 0)
        for n in range(3):
            log.append([Record(value=b"%d" % n)])
            log.roll()
    with open_reader(tmp_path) as reader:
        assert values(reader) == [b"0", b"1", b"2"]
        with open_engine(tmp_path) as engine:
            engine.log("t", 0).delete_records(2)
        assert reader.refresh() == (("t", 0),)
        assert values(reader) == [b"2"]
        assert reader.log("t", 0).offsets().log_start == 2


def test_a_topic_that_was_created_again_is_another(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
    with open_reader(tmp_path) as reader:
        old = reader.log("t", 0)
        following = reader.topic("t").follow(poll_ms=1)
        with open_engine(tmp_path) as engine:
            engine.delete_topic("t")
            engine.create_topic("t")
        with pytest.raises(UnknownTopicError, match="created again"):
            next(following)
        with pytest.raises(ClosedError):
            list(old.records())


def test_following_yields_what_is_appended_later(tmp_path: Path) -> None:
    """The clock of the test appends while the follower waits."""

    class Appending(ManualClock):
        def wait(self, event: Any, duration_ms: int) -> bool:
            if values_to_append:
                value = values_to_append.pop(0)
                with open_engine(tmp_path) as engine:
                    engine.log("t", 0).append([Record(value=value)])
                if not values_to_append:
                    shutil.copytree(tmp_path / "t-0", tmp_path / "t-1")
            return super().wait(event, duration_ms)

    values_to_append = [b"b", b"c"]
    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"a")])
    with open_reader(tmp_path, env=Env(clock=Appending())) as reader:
        records = list(reader.topic("t").follow(poll_ms=100, timeout_ms=250))
        assert [(record.value, record.partition) for record in records] == [
            *[(b"a", 0), (b"b", 0), (b"c", 0)],
            *[(b"a", 1), (b"b", 1), (b"c", 1)],
        ]
        assert [record.value for record in reader.topic("t").follow(start=1, partitions=[0], timeout_ms=0)] == [
            b"b",
            b"c",
        ]


def test_a_follower_that_starts_above_the_end_gets_no_record_below_its_start(tmp_path: Path) -> None:
    """Records above the end of a reader may be known from the engine, or from a tier that ends later."""
    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"a")])
    with open_reader(tmp_path) as reader:
        following = reader.topic("t").follow(start=2, timeout_ms=0)
        with open_engine(tmp_path) as engine:
            engine.log("t", 0).append([Record(value=value) for value in (b"b", b"c")])
        reader.refresh()
        assert [record.value for record in following] == [b"c"]


def test_two_threads_that_open_a_log_at_once_get_one_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_open = threading.Barrier(2)

    def slow(*arguments: Any) -> LoadedLog:
        both_open.wait(timeout=60)
        return load(*arguments)

    with open_reader(folder) as reader, ThreadPoolExecutor(2) as pool:
        with monkeypatch.context() as patched:
            patched.setattr("stratalog.reading.directory_reader.load", slow)
            first_log, second_log = pool.map(lambda _: reader.log("orders", 0), range(2))
        assert first_log is second_log is reader.log("orders", 0)
        assert len(list(first_log.records())) == 50


def test_a_follower_reads_segments_that_are_evicted_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    tier = f"file://{tmp_path / 'bucket'}"
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 0, "file.delete.delay.ms": 0})
        for _ in range(5):
            engine.log("t", 0).append([Record(value=b"")])
            engine.log("t", 0).roll()
        engine.flush()
        with open_reader(tmp_path / "data", tier=tier) as reader:
            following = reader.topic("t").follow(timeout_ms=0)
            assert next(following).offset == 0
            engine.offload()
            engine.apply_retention()
            assert engine.log("t", 0).offsets().local_log_start == 5
            assert [record.offset for record in following] == [1, 2, 3, 4]


def test_a_follower_reports_segments_that_stay_unreadable_in_several_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    def gone(log: LogReader, *_: object) -> Iterator[Any]:
        calls.append(log.name.partition)
        assert len(calls) < 10
        yield from ()
        raise SegmentGoneError("another process replaced the file", "0.log")

    with open_engine(tmp_path) as engine:
        engine.create_topic("t", partitions=2)
        for number in range(2):
            engine.log("t", number).append([Record(value=b"v")])
    monkeypatch.setattr(LogReader, "columns", gone)
    with open_reader(tmp_path) as reader, pytest.raises(SegmentGoneError):
        next(reader.topic("t").follow())
    assert calls == [0, 1, 0]


def test_a_follower_that_lost_records_reports_it(tmp_path: Path) -> None:
    class Deleting(ManualClock):
        def wait(self, event: Any, duration_ms: int) -> bool:
            with open_engine(tmp_path) as engine:
                engine.log("t", 0).append([Record(value=b"x")] * 5)
                engine.log("t", 0).delete_records(4)
            return super().wait(event, duration_ms)

    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"a")])
    with open_reader(tmp_path, env=Env(clock=Deleting())) as reader:
        following = reader.topic("t").follow()
        assert next(following).value == b"a"
        with pytest.raises(OffsetOutOfRangeError):
            next(following)


def test_a_follower_of_an_empty_log_reports_records_that_it_lost(tmp_path: Path) -> None:
    """The follower waits at offset 0. Partition 1 is new, and is read from its log start."""

    class Deleting(ManualClock):
        def wait(self, event: Any, duration_ms: int) -> bool:
            with open_engine(tmp_path) as engine:
                if number := partitions.pop():
                    engine.create_partitions("t", 2)
                log = engine.log("t", number)
                log.append([Record(value=b"%d" % n) for n in range(10)])
                log.delete_records(5)
            return super().wait(event, duration_ms)

    partitions = [0, 1]
    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
    with open_reader(tmp_path, env=Env(clock=Deleting())) as reader:
        following = reader.topic("t").follow()
        assert [next(following).offset for _ in range(5)] == [5, 6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRangeError, match="offset=0 log_start=5"):
            next(following)


def test_the_only_partition_need_not_be_named(folder: Path, tmp_path: Path) -> None:
    with open_engine(tmp_path / "one") as engine:
        engine.create_topic("one")
        engine.create_topic("three", partitions=3)
        assert engine.log("one") is engine.log("one", 0)
        with pytest.raises(ConfigError, match=r"3 partitions: name one, such as log\('three', 0\)"):
            engine.log("three")
        with pytest.raises(UnknownTopicError):
            engine.log("nothing")
        with pytest.raises(WrongTypeError, match=r"append\(\[record\]\)"):
            engine.log("one").append(Record(value=b"v"))  # type: ignore[arg-type]  # the mistake
    with open_reader(folder) as reader:
        assert repr(reader) == f"Reader({str(folder)!r})"
        with pytest.raises(ConfigError, match="3 partitions"):
            reader.log("orders")
