"""The layout ``parquet`` in a whole engine, for topics whose producers compress and use transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import stratalog
from stratalog import Engine, Log, Record
from stratalog.cli.app import run
from stratalog.errors import CorruptObjectError
from stratalog.spi import BatchHeader
from stratalog_formats.layouts.parquet import ParquetLayout

CONFIG = {
    "remote.storage.enable": True,
    "tier.layout": "parquet",
    "retention.ms": -1,
    "local.retention.bytes": 0,
    "compression.type": "producer",
}
COUNT = 60


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    (tmp_path / "tier").mkdir()
    return tmp_path / "tier"


@pytest.fixture
def engine(tmp_path: Path, tier: Path) -> Iterator[Engine]:
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tier}") as engine:
        yield engine


def records(first: int, count: int = 10) -> list[Record]:
    return [
        Record(
            timestamp_ms=10_000 + n, key=b"k%d" % (n % 3), value=b"a value, %d " % n * 8, headers=(("n", b"%d" % n),)
        )
        for n in range(first, first + count)
    ]


def append(log: Log, first: int, codec: str, **header: int | bool) -> None:
    record_codec = log.components.codecs.by_name(codec) if codec else None
    batch_header = BatchHeader(base_offset=0, **header)  # type: ignore[arg-type]  # as each test gives them
    log.append_as_leader(
        bytes(log.components.formats.of(2, "", 0).encode(records(first), batch_header, record_codec, None))
    )


def filled(engine: Engine) -> tuple[Log, list[Record], list[Record]]:
    """Return a log whose records are only in the tier, and its records as read before from local disk.

    The records are those of read_uncommitted and of read_committed.
    """
    engine.create_topic("t", config=CONFIG)
    log = engine.log("t", 0)
    fill(log)
    log.roll()
    before = list(log.records()), list(log.records(isolation="read_committed"))
    engine.offload()
    engine.apply_retention()
    assert log.offsets().local_log_start == log.offsets().log_end
    return log, *before


def fill(log: Log) -> None:
    for number, codec in enumerate(("zstd", "", "gzip")):
        append(log, 10 * number, codec)
    for number, is_kept in ((0, True), (1, False)):
        append(log, 30, "lz4", producer_id=7, producer_epoch=0, base_sequence=10 * number, transactional=True)
        log.end_transaction(7, 0, commit=is_kept, coordinator_epoch=0)
    append(log, 50, "snappy")


def rows_in(tier: Path) -> int:
    return sum(int(pq.read_metadata(file).num_rows) for file in tier.rglob("*.parquet"))


def test_records_transactions_and_times_are_as_they_were_on_local_disk(engine: Engine) -> None:
    log, all_records, committed = filled(engine)
    assert len(all_records) == COUNT
    assert len(committed) == COUNT - 10
    assert list(log.records()) == all_records
    assert list(log.records(isolation="read_committed")) == committed
    assert [log.offset_for_timestamp(10_000 + n) for n in (0, 15, 29)] == [0, 15, 29]
    with log.fetch(12, 1 << 20) as fetch_result:
        table = log.components.formats.of(2, "", 0).scan(
            fetch_result.read(), 0, fetch_result.size_bytes, check_crc=True
        )
    assert table.base_offset.tolist()[:2] == [10, 20]
    assert set(table.producer_id.tolist()) == {-1, 7}


@pytest.mark.parametrize("columns", [None, ["key"], ["offset", "timestamp", "headers"], ["partition", "value"]])
@pytest.mark.parametrize(("start", "end"), [(0, None), (13, 47), (49, 53), (20, 21), (30, 31)])
def test_columns_come_from_the_file_as_from_local_disk(
    engine: Engine, columns: list[str] | None, start: int, end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.create_topic("local", config={"compression.type": "producer"})
    local = engine.log("local", 0)
    log, _, _ = filled(engine)
    fill(local)
    expected = local.to_arrow(start, end, columns=columns)
    assert expected.num_rows
    monkeypatch.setattr(ParquetLayout, "read", refuse)
    assert log.to_arrow(start, end, columns=columns).combine_chunks().equals(expected.combine_chunks())


def refuse(*_: object) -> Iterator[memoryview]:
    raise AssertionError("the log's bytes were rebuilt")


def test_records_of_aborted_transactions_are_left_out_of_columns(engine: Engine) -> None:
    log, _, committed = filled(engine)
    table = log.to_arrow(isolation="read_committed")
    assert table["offset"].to_pylist() == [record.offset for record in committed]
    assert log.to_arrow(0, 20, isolation="read_committed").num_rows == 20


def test_damage_to_a_row_group_is_an_error_of_columns_too(engine: Engine, tier: Path) -> None:
    log, _, _ = filled(engine)
    for file in tier.rglob("*.parquet"):
        contents = file.read_bytes()
        file.write_bytes(contents[:20] + bytes([contents[20] ^ 1]) + contents[21:])
    with pytest.raises(CorruptObjectError, match="hash of a part is wrong"):
        log.to_arrow()


def test_the_manifest_has_the_size_before_and_after(engine: Engine, tier: Path) -> None:
    log, _, _ = filled(engine)
    view = log.view().remote
    assert view is not None
    entries = [segment.entry for segment in view.segments]  # type: ignore[attr-defined]  # these are RemoteSegments
    assert all(entry.info.size_bytes > entry.info.original_bytes > 0 for entry in entries)
    assert {entry.layout for entry in entries} == {"parquet@1"}
    assert rows_in(tier) == COUNT


def test_a_restored_directory_has_the_records(engine: Engine, tier: Path, tmp_path: Path) -> None:
    _, every, committed = filled(engine)
    engine.close()
    assert run(["restore", f"file://{tier}", str(tmp_path / "copy")]) == 0
    with stratalog.open_reader(tmp_path / "copy") as reader:
        assert list(reader.log("t", 0).records()) == every
        assert list(reader.log("t", 0).records(isolation="read_committed")) == committed


def test_a_deep_check_finds_nothing_and_damage_is_repaired_from_local_disk(
    engine: Engine, tier: Path, tmp_path: Path
) -> None:
    engine.create_topic("t", config={**CONFIG, "local.retention.bytes": -1})
    append(engine.log("t", 0), 0, "zstd")
    engine.log("t", 0).roll()
    engine.offload()
    engine.close()
    uri = f"file://{tier}"
    assert run(["verify", uri, "--deep"]) == 0
    (file,) = tier.rglob("*.parquet")
    contents = file.read_bytes()
    file.write_bytes(contents[:20] + bytes([contents[20] ^ 1]) + contents[21:])
    assert run(["verify", uri, "--deep"]) != 0
    assert run(["verify", uri, "--deep", "--repair", "--dir", str(tmp_path / "data")]) == 0
    assert file.read_bytes() == contents


def test_kept_batches_come_back_as_the_producer_made_them(tmp_path: Path, tier: Path) -> None:
    settings = {"plugins": {"parquet": {"compressed.batches": "keep"}}}
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tier}", config=settings) as engine:
        log, all_records, _ = filled(engine)
        assert list(log.records()) == all_records
        with log.fetch(0, 1) as fetch_result:
            table = log.components.formats.of(2, "", 0).scan(
                fetch_result.read(), 0, fetch_result.size_bytes, check_crc=True
            )
        assert table.attributes[0] & 7 == log.components.codecs.by_name("zstd").id
    assert rows_in(tier) == COUNT
