"""Splits of a plan that are read one by one. Together they have the records of the log once, in order.

The tests also cover splits with damaged segments, deleted segments, and aborted transactions.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.env.posix_vfs import PosixVfs
from stratalog.env.threads import outcomes
from stratalog.errors import ConfigError, CorruptBatchError, OffsetOutOfRangeError
from stratalog.reading import (
    DamagedRange,
    MissingRange,
    OffsetRange,
    ReadSource,
    Scanned,
    Split,
    plan_splits,
    scan,
)
from stratalog.reading.open_reader import open_tier
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

ALL = 1 << 62
ORDERS = TopicPartition("orders", 0)


def fill(
    folder: Path,
    *,
    batches: int = 60,
    tier: str | None = None,
    partitions: int = 1,
    config: Mapping[str, object] | None = None,
) -> None:
    settings: dict[str, object] = {
        "segment.bytes": 20_000,
        "index.interval.bytes": 500,
        "retention.ms": -1,
        "file.delete.delay.ms": 0,
    }
    settings |= dict(config or {})
    with open_engine(folder, tier=tier, topic_defaults={"local.retention.bytes": 0}) as engine:
        engine.create_topic("orders", partitions=partitions, config=settings)
        for partition in range(partitions):
            log = engine.log("orders", partition)
            for batch in range(batches):
                stamps = range(1000 + batch * 10, 1010 + batch * 10)
                log.append([Record(timestamp_ms=ms, key=b"%d" % ms, value=b"%d" % ms * 25) for ms in stamps])
        if tier is not None:
            for partition in range(partitions):
                engine.log("orders", partition).roll()
            engine.offload()
            engine.apply_retention()


def plan(
    source: ReadSource,
    start: int = 0,
    end: int = ALL,
    *,
    isolation: str = "read_uncommitted",
    split_bytes: int | None = None,
    min_splits: int = 1,
) -> list[Split]:
    with source.open(peek=True) as reader:
        ranges = [OffsetRange(name, start, end) for name in reader.partitions()]
        return plan_splits(reader, ranges, isolation=isolation, split_bytes=split_bytes, min_splits=min_splits)


def offsets(source: ReadSource, splits: Sequence[Split], log: TopicPartition = ORDERS) -> list[int]:
    return [
        offset
        for split in splits
        for scanned in scan(source, split)
        if scanned.log == log
        for offset in listed(scanned)
    ]


def listed(scanned: Scanned) -> list[int]:
    column: list[Any] = scanned.batch.column("offset").to_pylist()
    return column


def damage_entry(folder: Path, segment: int, number: int) -> tuple[int, int]:
    """Change the last byte of one entry of a segment of partition 0; return the entry's position and stored offset."""
    path = sorted((folder / "orders-0").glob("*.log"))[segment]
    data, position = bytearray(path.read_bytes()), 0
    for _ in range(number):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    size_bytes = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    data[position + size_bytes - 1] ^= 1
    path.write_bytes(data)
    return position, int.from_bytes(data[position : position + 8], "big")


@pytest.mark.parametrize("split_bytes", [1, 3_000, 50_000, None])
@pytest.mark.parametrize(
    "config",
    [{}, {"compression.type": "zstd"}, {"record.version": 1}, {"record.version": 0, "compression.type": "gzip"}],
    ids=["v2", "zstd", "v1", "v0-gzip"],
)
@pytest.mark.parametrize("place", ["directory", "tier"])
@pytest.mark.long
def test_splits_of_any_size_are_together_the_log(
    tmp_path: Path, place: str, config: dict[str, object], split_bytes: int | None
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    tier = f"file://{bucket}" if place == "tier" else None
    fill(tmp_path / "data", tier=tier, partitions=2, config=config)
    source = ReadSource(tier or str(tmp_path / "data"))
    splits: list[Split] = pickle.loads(pickle.dumps(plan(source, split_bytes=split_bytes)))  # noqa: S301 - our own
    scans = [scanned for split in splits for scanned in scan(source, split)]
    for number in (0, 1):
        name = TopicPartition("orders", number)
        with source.open() as reader:
            expected = reader.log(*name).to_arrow()
        batches = [scanned.batch for scanned in scans if scanned.log == name]
        assert expected.num_rows == 600
        assert expected.from_batches(batches).equals(expected)
    if split_bytes is None:
        assert len(splits) == 1


def test_a_part_of_the_log_is_planned_to_the_record(tmp_path: Path) -> None:
    fill(tmp_path)
    source = ReadSource(str(tmp_path))
    for start, end in [(0, 1), (7, 8), (5, 333), (333, 600), (599, ALL)]:
        assert offsets(source, plan(source, start, end, split_bytes=2_000)) == list(range(start, min(end, 600)))
    assert plan(source, 600, ALL) == plan(source, 40, 40) == []


def test_there_are_as_many_splits_as_asked_for_and_they_are_of_one_size(tmp_path: Path) -> None:
    fill(tmp_path, batches=200, config={"segment.bytes": 2_000})
    source = ReadSource(str(tmp_path))
    splits = plan(source, min_splits=7)
    sizes = [split.size_bytes for split in splits]
    assert len(splits) == 7
    assert max(sizes) < 2 * min(sizes)
    with source.open() as reader, pytest.raises(ConfigError):
        plan_splits(reader, [], min_splits=0)


@pytest.mark.long
def test_small_segments_are_packed_and_their_indexes_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, batches=300, config={"segment.bytes": 1_500})
    source = ReadSource(str(tmp_path))
    with source.open() as reader:
        segments = len(reader.log("orders", 0).segments())
        # a call of this function would fail
        monkeypatch.setattr("stratalog.reading.split_plan.offset_index", None)
        splits = plan_splits(reader, [OffsetRange(ORDERS, 0, ALL)], min_splits=4)
    assert segments > 100
    assert len(splits) == 4
    monkeypatch.undo()
    assert offsets(source, splits) == list(range(3000))


@pytest.mark.parametrize("place", ["directory", "tier"])
def test_a_hundredth_of_the_time_reads_at_most_three_hundredths_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    tier = f"file://{bucket}" if place == "tier" else None
    settings: dict[str, object] = {"segment.bytes": 8 << 20, "index.interval.bytes": 4096, "retention.ms": -1}
    with open_engine(tmp_path / "data", tier=tier, topic_defaults={"local.retention.bytes": 0}) as engine:
        engine.create_topic("orders", config=settings)
        log, value = engine.log("orders", 0), bytes(1000)
        for batch in range(4_000):
            log.append([Record(timestamp_ms=batch * 16 + row, value=value) for row in range(16)])
        log.roll()
        if tier is not None:
            engine.offload()
            engine.apply_retention()
    read_sizes: list[int] = []
    real_read, real_read_exactly, real_read_cached = PosixVfs.read, TierStore.read_exactly, TierStore.read_cached

    def local(self: PosixVfs, *arguments: object) -> object:
        data = real_read(self, *arguments)  # type: ignore[arg-type]  # counted, and passed on as it came
        read_sizes.append(len(data))
        return data

    def remote(self: TierStore, key: str, start: int, end: int) -> bytes:
        data = real_read_exactly(self, key, start, end)
        read_sizes.append(len(data))
        return data

    def near(self: TierStore, key: str, start: int, buffer: memoryview) -> bool:
        is_cached = real_read_cached(self, key, start, buffer)
        read_sizes.append(len(buffer) if is_cached else 0)
        return is_cached

    source = ReadSource(tier or str(tmp_path / "data"))
    with source.open() as reader:
        total = sum(segment.size_bytes for segment in reader.log("orders", 0).segments())
    if tier is None:
        monkeypatch.setattr(PosixVfs, "read", local)
    else:
        monkeypatch.setattr(TierStore, "read_exactly", remote)
        monkeypatch.setattr(TierStore, "read_cached", near)
    with source.open(peek=True) as reader:
        log_ = reader.log("orders", 0)
        start, end = log_.offset_for_timestamp(30_000), log_.offset_for_timestamp(30_640)
        assert start is not None
        assert end is not None
        splits = plan_splits(reader, [OffsetRange(ORDERS, start, end)])
    assert offsets(source, splits) == list(range(30_000, 30_640))
    assert 0.01 * total < sum(read_sizes) <= 0.03 * total


def test_aborted_records_are_in_no_split(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", config={"segment.bytes": 2_000, "index.interval.bytes": 100})
        with engine.producer(transactional_id="t", batch_size_bytes=200) as producer:
            for number in range(30):
                producer.begin_transaction()
                for _ in range(5):
                    producer.send("orders", value=b"%d" % number * 20, partition=0)
                producer.flush()  # records that were never sent are not in the log
                producer.abort_transaction() if number % 3 else producer.commit_transaction()
    source = ReadSource(str(tmp_path))
    with open_reader(tmp_path) as reader:
        expected = [record.offset for record in reader.log("orders", 0).records(isolation="read_committed")]
    with source.open() as reader:
        splits = plan_splits(reader, [OffsetRange(ORDERS, 0, ALL)], isolation="read_committed", split_bytes=700)
    assert len(expected) == 50
    assert len(offsets(source, plan(source))) == 150
    assert len(splits) > 5
    assert offsets(source, splits) == expected


@pytest.mark.parametrize("split_bytes", [1_500, None])
def test_a_corrupt_batch_is_an_error_or_is_skipped_and_reported_once(tmp_path: Path, split_bytes: int | None) -> None:
    fill(tmp_path)
    path = sorted((tmp_path / "orders-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    source = ReadSource(str(tmp_path))
    splits = plan(source, split_bytes=split_bytes)
    with pytest.raises(CorruptBatchError) as raised:
        offsets(source, splits)
    assert raised.value.file == str(path)
    reported: list[DamagedRange] = []
    read_offsets = [
        offset
        for split in splits
        for scanned in scan(source, split, on_damage=reported.append)
        for offset in listed(scanned)
    ]
    [damage] = reported
    assert damage.file == str(path)
    assert damage.position == raised.value.position
    assert damage.end - damage.start == 10
    assert read_offsets == [offset for offset in range(600) if not damage.start <= offset < damage.end]


def test_several_corrupt_batches_of_one_object_are_each_reported_once(tmp_path: Path) -> None:
    """A damaged batch of a tier is read a second time. With two such batches, the reader once alternated for ever."""
    tier = tmp_path / "tier"
    tier.mkdir()
    fill(tmp_path / "logs", tier=f"file://{tier}")
    object_path = next(path for path in sorted(tier.rglob("*.seg")) if path.stat().st_size > 10_000)
    data = bytearray(object_path.read_bytes())
    for part in (3, 2):
        data[len(data) // part] ^= 1
    object_path.write_bytes(data)
    source, reported = ReadSource(f"file://{tier}"), list[DamagedRange]()

    def tell(damage: DamagedRange) -> None:
        assert len(reported) < 5, f"told without end: {reported}"
        reported.append(damage)

    splits = plan(source, 50)  # if an object is read completely, its hash is compared too
    read_offsets = [
        offset for split in splits for part in scan(source, split, on_damage=tell) for offset in listed(part)
    ]
    assert [damage.end - damage.start for damage in reported] == [10, 10]
    skipped = {offset for damage in reported for offset in range(damage.start, damage.end)}
    assert read_offsets == [offset for offset in range(50, max(read_offsets) + 1) if offset not in skipped]
    assert len(read_offsets) > 500


@pytest.mark.parametrize("start", [30, 35, 40])
def test_damage_before_a_split_adds_no_records_from_before_its_start(tmp_path: Path, start: int) -> None:
    fill(tmp_path, batches=16, config={"segment.bytes": 6_000, "index.interval.bytes": 1 << 20})
    assert damage_entry(tmp_path, 0, 2)[1] == 20
    source, reported = ReadSource(str(tmp_path)), list[DamagedRange]()
    splits = plan(source, start)
    read_offsets = [
        offset for split in splits for part in scan(source, split, on_damage=reported.append) for offset in listed(part)
    ]
    assert read_offsets == list(range(start, 160))
    assert reported == []


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("compression", "records"), [("uncompressed", 1), ("gzip", 10)])
@pytest.mark.parametrize("version", [0, 1])
def test_a_damaged_message_of_an_old_format_is_an_error_or_is_reported(
    tmp_path: Path, version: int, compression: str, records: int, number: int
) -> None:
    config = {"record.version": version, "compression.type": compression, "segment.bytes": 1_400}
    fill(tmp_path, batches=30, config=config)
    position, last_offset = damage_entry(tmp_path, 1, number)
    source, reported = ReadSource(str(tmp_path)), list[DamagedRange]()
    splits = plan(source)
    with pytest.raises(CorruptBatchError):
        offsets(source, splits)
    read_offsets = [
        offset for split in splits for part in scan(source, split, on_damage=reported.append) for offset in listed(part)
    ]
    assert [damage.position for damage in reported] == [position]
    assert read_offsets == [offset for offset in range(300) if not last_offset - records < offset <= last_offset]


@pytest.mark.parametrize("batches", [1, 3])
def test_a_log_that_was_cut_at_its_end_is_never_just_shorter(tmp_path: Path, batches: int) -> None:
    fill(tmp_path, batches=batches)
    [path] = (tmp_path / "orders-0").glob("*.log")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    source, reported = ReadSource(str(tmp_path)), list[DamagedRange]()
    splits = plan(source)
    with pytest.raises(CorruptBatchError):
        offsets(source, splits)
    read_offsets = [
        offset for split in splits for part in scan(source, split, on_damage=reported.append) for offset in listed(part)
    ]
    assert read_offsets == list(range(10 * (batches - 1)))
    assert [damage.file for damage in reported] == [str(path)]
    assert all(piece.damage is None for split in plan(source, 0, 10 * (batches - 1) - 1) for piece in split.pieces)


@pytest.mark.parametrize("content", [b"", bytes(64), b"\xff" * 80], ids=["missing", "zeros", "lies"])
def test_an_offset_index_that_is_wrong_changes_no_answer(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path)
    for path in (tmp_path / "orders-0").glob("*.index"):
        path.write_bytes(content)
    source = ReadSource(str(tmp_path))
    assert offsets(source, plan(source, 33, 567, split_bytes=2_000)) == list(range(33, 567))


@pytest.mark.long
def test_positions_of_a_plan_are_hints(tmp_path: Path) -> None:
    fill(tmp_path)
    source = ReadSource(str(tmp_path))
    for split in plan(source, 33, 567, split_bytes=2_000):
        for piece in split.pieces:
            for position, end_position in [(1, 20), (piece.size_bytes - 3, piece.size_bytes), (0, 0)]:
                changed_piece = piece._replace(position=position, end_position=end_position)
                assert offsets(source, [Split((changed_piece,), split.isolation)]) == list(
                    range(piece.start, piece.end)
                )


def test_segments_that_went_to_the_tier_meanwhile_are_read_there(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    fill(tmp_path / "data")
    source = ReadSource(str(tmp_path / "data"), tier=f"file://{bucket}")
    splits = plan(source, split_bytes=5_000)
    with open_engine(tmp_path / "data", tier=f"file://{bucket}") as engine:
        engine.alter_topic("orders", {"local.retention.bytes": 0, "remote.storage.enable": True})
        engine.offload()
        engine.apply_retention()
        assert engine.log("orders", 0).offsets().local_log_start > 0
    assert offsets(source, splits) == list(range(600))


def test_segments_that_retention_deleted_meanwhile_are_an_error_or_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    source = ReadSource(str(tmp_path))
    splits = plan(source)
    with open_engine(tmp_path) as engine:
        engine.log("orders", 0).delete_records(before=300)
        engine.apply_retention()
        start = engine.log("orders", 0).offsets().log_start
    with pytest.raises(OffsetOutOfRangeError):
        offsets(source, splits)
    missing_ranges: list[MissingRange] = []
    read_offsets = [
        offset
        for split in splits
        for scanned in scan(source, split, on_loss=missing_ranges.append)
        for offset in listed(scanned)
    ]
    lost_offsets = [offset for loss in missing_ranges for offset in range(loss.start, loss.end)]
    assert start == 300
    assert sorted(lost_offsets + read_offsets) == list(range(600))
    assert max(lost_offsets) < 300


def test_a_topic_that_was_created_again_has_another_id(tmp_path: Path) -> None:
    fill(tmp_path)
    source = ReadSource(str(tmp_path))
    splits = plan(source)
    with open_engine(tmp_path) as engine:
        engine.delete_topic("orders")
    fill(tmp_path, batches=90)
    missing_ranges: list[MissingRange] = []
    scans = [scanned for split in splits for scanned in scan(source, split, on_loss=missing_ranges.append)]
    assert not scans
    assert sum(loss.end - loss.start for loss in missing_ranges) == 600


def test_the_records_of_a_deleted_topic_are_reported_as_missing(tmp_path: Path) -> None:
    fill(tmp_path)
    source = ReadSource(str(tmp_path))
    splits = plan(source)
    with open_engine(tmp_path) as engine:
        engine.delete_topic("orders")
    missing_ranges: list[MissingRange] = []
    assert not [scanned for split in splits for scanned in scan(source, split, on_loss=missing_ranges.append)]
    assert sum(loss.end - loss.start for loss in missing_ranges) == 600


def test_scans_in_several_threads_open_the_tier_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    fill(tmp_path / "data", tier=f"file://{bucket}")
    source = ReadSource(f"file://{bucket}")
    (split,) = plan(source)
    barrier = Barrier(2, timeout=30)

    def open_together(*args: Any, **keywords: Any) -> Tier:
        barrier.wait()  # raises if the other thread opens the tier only later
        return open_tier(*args, **keywords)

    monkeypatch.setattr("stratalog.reading.split_opener.open_tier", open_together)
    scanned_offsets = outcomes([split, split], lambda part: offsets(source, [part]), 2, "test-scan")
    assert scanned_offsets == [list(range(600))] * 2


def test_batches_have_a_size_that_pays(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", config={"compression.type": "zstd", "max.message.bytes": 64 << 20})
        for _ in range(300):
            engine.log("orders", 0).append([Record(value=bytes(1000)) for _ in range(16)])
        engine.log("orders", 0).append([Record(value=bytes(1000)) for _ in range(16_000)])
    source = ReadSource(str(tmp_path))
    sizes = [scanned.batch.nbytes for split in plan(source) for scanned in scan(source, split)]
    assert all(1 << 20 <= size <= 4 << 20 for size in sizes[:-1])
    assert sizes[-1] <= 4 << 20


def test_neither_a_split_nor_a_text_of_the_source_holds_a_credential(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    fill(tmp_path / "data", tier=f"file://{bucket}")
    source = ReadSource(str(tmp_path / "data"), tier=f"file://{bucket}", tier_options={"auto_mkdir": "canary"})
    assert "canary" not in repr(source)
    assert b"canary" not in pickle.dumps(plan(source))
