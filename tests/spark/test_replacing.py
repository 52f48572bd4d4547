"""Jobs that replace segments of a tier: compact, erase, convert. Their tasks run here, not on Spark."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.errors import ConfigError, FencedEpochError, StorageError, UnknownTopicError

pytestmark = pytest.mark.usefixtures("has_spark")

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 4_000, "retention.ms": -1}
Job = Callable[..., Any]


def run_here(_spark: object, tasks: Sequence[Any], work: Callable[[Any], Any], **_: object) -> list[Any]:
    """In place of ``run_tasks``: each task twice, as Spark does where it guesses that one is slow; pickled on its way."""
    for task in tasks:
        work(pickle.loads(pickle.dumps(task)))  # noqa: S301 - made just now
    return [pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(task))))) for task in tasks]  # noqa: S301 - the same


class Frame:
    """The rows that the three steps of a compaction make, as Spark would hand them on."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def toArrow(self) -> Any:  # noqa: N802 - Spark's name
        import pyarrow as pa  # noqa: PLC0415 - comes with Spark

        work = pickle.loads(pickle.dumps(self._work))  # noqa: S301 - made just now
        numbers = range(len(work.runs))
        hashed = pa.Table.from_batches([batch for number in numbers for batch in work.hashed(number, [7, 8])])
        kept = pa.concat_tables(work.merged(group, list(numbers)) for group in groups(hashed, "bucket"))
        return pa.concat_tables(work.written(group) for group in groups(kept, "run"))


def groups(table: Any, name: str) -> Iterable[Any]:
    from pyarrow import compute  # noqa: PLC0415 - comes with Spark

    for value in compute.unique(table[name]).to_pylist():
        found = table.filter(compute.equal(table[name], value))
        order = list(range(found.num_rows))
        random.Random(str(value)).shuffle(order)  # noqa: S311 - messages come in any order, the same in every run
        yield found.take(order)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The jobs, without Spark."""
    import stratalog_spark  # noqa: PLC0415 - needs pyspark
    from stratalog_spark.jobs import compact, convert, erase, merge  # noqa: PLC0415 - the same

    for module in (compact, convert, erase, merge):
        monkeypatch.setattr(module, "run_tasks", run_here)
    monkeypatch.setattr(compact._Work, "frame", lambda self, _: Frame(self))
    monkeypatch.setattr(compact, "BUCKET_RECORDS", 200)
    return stratalog_spark


@pytest.fixture(params=["a task a log", "tasks that tell each other keys"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of small logs, and as of large ones."""
    from stratalog_spark.jobs import compact  # noqa: PLC0415 - needs pyspark

    if request.param != "a task a log":
        monkeypatch.setattr(compact, "ALONE_RECORDS", 0)
    return str(request.param)


def fill(
    folder: Path,
    rows: Callable[[int], Iterable[Record]],
    config: dict[str, object],
    *,
    partitions: int = 2,
    later: dict[str, object] | None = None,
) -> str:
    """A tier whose engine has stopped, of a topic that got other settings ``later``; its URI."""
    tier = folder / "tier"
    tier.mkdir()
    with open_engine(folder / "data", tier=tier.as_uri()) as engine:
        plain = {name: value for name, value in config.items() if name != "cleanup.policy"}  # takes null keys
        engine.create_topic("orders", partitions=partitions, config=plain)
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


@pytest.mark.parametrize("held", [None, 1 << 20, 64])
def test_compaction_leaves_the_newest_of_each_key_by_one_commit(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int | None
) -> None:
    from stratalog_spark.jobs import compact, runs  # noqa: PLC0415 - needs pyspark

    monkeypatch.setattr(compact, "ALONE_RECORDS", 600 if held is None else 0)
    monkeypatch.setattr(compact, "_HELD_RECORDS", held)
    monkeypatch.setattr(runs, "SMALLEST_RUN_BYTES", 10_000)
    uri = fill(tmp_path, some, COMPACTED)
    before, commits = [read(uri, partition) for partition in (0, 1)], versions(uri)
    done = jobs.compact(None, uri, topics=["orders"], take_over=True)
    for partition, rows in enumerate(before):
        newest = {row.key: row for row in rows if row.key is not None}
        assert read(uri, partition) == sorted(newest.values(), key=lambda row: row.offset)
    assert versions(uri) == [commit + 1 for commit in commits]
    assert (done.records_before, done.records_after) == (1200, 180)
    assert (done.shuffled_bytes > 0) == (held is not None)
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        log = engine.log("orders", 0)
        assert log.offsets().log_end == 600
        log.append([Record(key=b"key-1", value=b"later")])
        assert [row.offset for row in log.records()][-1] == 600


@pytest.mark.usefixtures("both_ways")
def test_compaction_of_what_is_compact_changes_no_record(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, COMPACTED)
    jobs.compact(None, uri, topics=["orders"], take_over=True)
    once = read(uri)
    again = jobs.compact(None, uri, topics=["orders"])
    assert read(uri) == once
    assert again.records_before == again.records_after
    assert all(found.segments_after <= found.segments_before for found in again.logs)


@pytest.mark.usefixtures("both_ways")
def test_tombstones_stay_until_they_were_seen_for_long(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratalog_spark.jobs import compact  # noqa: PLC0415 - needs pyspark

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
def test_what_was_aborted_neither_stays_nor_hides_anything(jobs: Any, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match="has no compact"):
        jobs.compact(None, uri, topics=["orders"], take_over=True)
    with pytest.raises(FencedEpochError, match="take_over"):
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
    from stratalog_spark.jobs import compact  # noqa: PLC0415 - needs pyspark

    uri = fill(tmp_path, some, COMPACTED)
    whole: Callable[..., Any] = vars(compact)["publish"]

    def late(*arguments: Any, **options: Any) -> Any:
        with open_engine(tmp_path / "other", tier=uri, attach=True) as engine:
            engine.log("orders", 0).append([Record(key=b"key-1", value=b"of the engine")])
            engine.log("orders", 0).roll()
            engine.offload()
        return whole(*arguments, **options)

    monkeypatch.setattr(compact, "publish", late)
    before = read(uri)
    with pytest.raises(StorageError):
        jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert read(uri)[:600] == before
    assert read(uri)[600].value == b"of the engine"


def test_small_logs_and_large_ones_are_compacted_together(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by one commit, and only when all tasks are through."""
    from stratalog_spark.jobs import compact  # noqa: PLC0415 - needs pyspark

    monkeypatch.setattr(compact, "ALONE_RECORDS", 300)
    uri = fill(tmp_path, lambda partition: list(some(partition))[: 600 if partition else 300], COMPACTED)
    before, commits = [read(uri, partition) for partition in (0, 1)], versions(uri)
    monkeypatch.setattr(compact._Work, "written", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert [read(uri, partition) for partition in (0, 1)] == before
    monkeypatch.undo()
    monkeypatch.setattr(compact, "run_tasks", run_here)
    monkeypatch.setattr(compact._Work, "frame", lambda self, _: Frame(self))
    monkeypatch.setattr(compact, "ALONE_RECORDS", 300)
    done = jobs.compact(None, uri, topics=["orders"], take_over=True)
    assert [found.records_before for found in sorted(done.logs, key=lambda found: found.log)] == [300, 600]
    for partition, rows in enumerate(before):
        newest = {row.key: row for row in rows if row.key is not None}
        assert read(uri, partition) == sorted(newest.values(), key=lambda row: row.offset)
    assert versions(uri) == [commit + 1 for commit in commits]
    assert done.shuffled_bytes > 0


def test_erased_keys_are_gone_and_nothing_else(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, {"segment.bytes": 4_000, "retention.ms": -1})
    before, keys = [read(uri, partition) for partition in (0, 1)], [b"key-3", b"key-40", b"nobody"]
    told = jobs.erase(None, uri, keys, dry_run=True)
    assert [read(uri, partition) for partition in (0, 1)] == before
    done = jobs.erase(None, uri, keys, take_over=True)
    left = [[row for row in rows if row.key not in keys] for rows in before]
    assert [read(uri, partition) for partition in (0, 1)] == left
    gone = sum(len(rows) for rows in before) - sum(len(rows) for rows in left)
    assert sum(told.records.values()) == sum(done.records.values()) == gone > 0
    assert sum(found.records_before - found.records_after for found in done.logs) == gone
    assert jobs.erase(None, uri, keys).records == {}
    with pytest.raises(ConfigError, match="which keys"):
        jobs.erase(None, uri, [])


def test_only_segments_with_the_keys_are_written_anew(jobs: Any, tmp_path: Path) -> None:
    def rows(_: int) -> Iterable[Record]:
        return (Record(timestamp_ms=n, key=b"gone" if n in {3, 300} else b"k", value=bytes(30)) for n in range(500))

    uri = fill(tmp_path, rows, {"segment.bytes": 2_000, "retention.ms": -1}, partitions=1)
    objects = {path.name for path in (tmp_path / "tier").rglob("*.seg")}
    done = jobs.erase(None, uri, [b"gone"], take_over=True)
    assert (done.segments, len(done.logs), sum(found.segments_before for found in done.logs)) == (2, 2, 2)
    assert len({path.name for path in (tmp_path / "tier").rglob("*.seg")} - objects) >= 2


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


def test_converting_again_writes_what_came_since(jobs: Any, tmp_path: Path) -> None:
    uri = fill(tmp_path, some, {"segment.bytes": 4_000, "retention.ms": -1})
    first = jobs.convert(None, uri, topics=["orders"], compression="zstd", take_over=True)
    assert [found.log.partition for found in first.logs] == [0, 1]
    objects = set((tmp_path / "tier").rglob("*.seg"))
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        log = engine.log("orders", 0)
        log.append([Record(timestamp_ms=1, key=b"late", value=bytes(100))])
        log.roll()
        engine.offload()
    before = read(uri)
    [late] = set((tmp_path / "tier").rglob("*.seg")) - objects
    [again] = jobs.convert(None, uri, topics=["orders"], compression="zstd", take_over=True).logs
    assert (again.log.partition, again.segments_before, again.records_before) == (0, 1, 1)
    assert 0 < again.bytes_after < again.bytes_before
    made = {path.name[:20] for path in set((tmp_path / "tier").rglob("*.seg")) - objects - {late}}
    assert made == {f"{600:020}"}
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
    done = jobs.convert(None, uri, topics=["orders"], compression="zstd", layout="chunked", take_over=True)
    assert [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")] == before
    assert sum(found.bytes_after for found in done.logs) < sum(found.bytes_before for found in done.logs)
    assert layouts(uri) == {"chunked@1"}
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        assert [row.offset for row in engine.log("orders", 0).records()] == [row[0] for row in before[0][0]]
    with pytest.raises(StorageError):
        jobs.convert(None, uri, topics=["orders"], layout="nobody", take_over=True)


def test_small_segments_become_fewer_and_no_byte_changes(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratalog_spark.jobs import merge  # noqa: PLC0415 - needs pyspark

    monkeypatch.setattr(merge, "SMALLEST_RUN_BYTES", 20_000)
    uri = fill(tmp_path, some, {"segment.bytes": 1_500, "retention.ms": -1}, later={"segment.bytes": 15_000})
    with pytest.raises(FencedEpochError, match="take_over"):
        jobs.merge(None, uri)
    before, commits = [raw(uri, partition) for partition in (0, 1)], versions(uri)
    done = jobs.merge(None, uri, topics=["orders"], segment_bytes=6_000, take_over=True)
    assert [raw(uri, partition) for partition in (0, 1)] == before
    assert versions(uri) == [commit + 1 for commit in commits]
    for found in done.logs:
        assert found.segments_after <= found.segments_before / 3
        assert found.records_before == found.records_after == 600
        assert found.bytes_before == found.bytes_after
    objects = set((tmp_path / "tier").rglob("*.seg"))
    assert jobs.merge(None, uri, segment_bytes=6_000).logs == ()
    assert set((tmp_path / "tier").rglob("*.seg")) == objects
    assert jobs.merge(None, uri).logs != (), "up to segment.bytes of the topic"
    assert jobs.merge(None, uri).logs == ()
    with pytest.raises(ConfigError, match="1 byte or more"):
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
                engine.log("orders", number % 2).roll()  # the marker stands in the next segment
                producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()
        for partition in (0, 1):
            engine.log("orders", partition).roll()
        engine.offload()
    before = [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")]
    assert before[0] != before[1]
    done = jobs.merge(None, uri, take_over=True)
    assert [(found.segments_before > 10, found.segments_after) for found in done.logs] == [(True, 1), (True, 1)]
    assert [shown(uri, isolation) for isolation in ("read_uncommitted", "read_committed")] == before


def raw(uri: str, partition: int) -> bytes:
    """A log as it is stored."""
    with open_reader(uri) as reader:
        log, at, found = reader.log("orders", partition), 0, b""
        while (fetched := log.fetch(at, max_bytes=1 << 20)).slices:
            found += fetched.read()
            at = fetched.next_offset
        return found


def shown(uri: str, isolation: str) -> list[list[tuple[object, ...]]]:
    with open_reader(uri) as reader:
        logs = [reader.log("orders", partition) for partition in (0, 1)]
        return [[(row.offset, row.key, row.value) for row in log.records(isolation=isolation)] for log in logs]


def magics(uri: str) -> set[int]:
    with open_reader(uri) as reader:
        log = reader.log("orders", 0)
        return {log.fetch(offset, max_bytes=1).read()[16] for offset in range(0, 600, 7)}


def layouts(uri: str) -> set[str]:
    from stratalog.tier.fetch import RemoteSegment  # noqa: PLC0415 - of this helper alone

    with open_reader(uri) as reader:
        remote = reader.log("orders", 0).view().remote
        assert remote is not None
        return {found.stored.layout for found in remote.segments if isinstance(found, RemoteSegment)}


def test_messages_between_the_passes_lose_nothing() -> None:
    import numpy as np  # noqa: PLC0415 - comes with Spark

    from stratalog_spark.jobs.packing import Newest, pack_offsets, unpack_offsets  # noqa: PLC0415 - the same

    for start, gaps in ((0, [0]), (5, [1, 200, 3]), (9, [70_000, 1]), (1, [1 << 33, 2]), (7, [])):
        offsets = np.cumsum(np.array(gaps, np.int64)) + start
        assert unpack_offsets(pack_offsets(offsets, start), start).tolist() == offsets.tolist()
        hashes: Any = np.arange(2 * len(gaps), dtype=np.uint64).reshape(-1, 2)
        packed = Newest(hashes, offsets).pack(0, len(gaps), start)
        found = Newest.unpack(packed, start)
        assert (found.hashes.tolist(), found.offsets.tolist()) == (hashes.tolist(), offsets.tolist())
    assert len(Newest(np.zeros((100, 2), np.uint64), np.arange(100)).pack(0, 100, 0)) <= 100 * 20 + 10
    with pytest.raises(StorageError, match="install the same"):
        Newest.unpack(bytes([9]) + packed[1:], 0)


def test_keys_that_agree_in_half_of_their_hash_are_two() -> None:
    import numpy as np  # noqa: PLC0415 - comes with Spark

    from stratalog_spark.jobs.packing import Newest  # noqa: PLC0415 - the same

    hashes = np.array([[1, 1], [1, 2], [1, 1], [0, 2], [1, 2]], np.uint64)
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        rows = np.array(order)
        found = Newest(hashes[rows], np.arange(5)[rows]).reduced()
        assert sorted(found.offsets.tolist()) == [2, 3, 4]
