"""A dataset reads only the parts of the logs that may match a filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from stratalog import Reader, Record, open_engine, open_reader
from stratalog.errors import ConfigError, CorruptBatchError
from stratalog.reading import topic_dataset

START_MS = 1_700_000_000_000
SECONDS = 60
OFFSET, PARTITION = ds.field("offset"), ds.field("partition")


def stamp(second: int) -> Any:
    return pa.scalar((START_MS + 1000 * second) * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with two partitions of 6 segments with 10 records each, a second apart.

    The last record has no timestamp.
    """
    with open_engine(tmp_path / "data", topic_defaults={"retention.ms": -1}) as engine:
        engine.create_topic("t", partitions=2, config={"message.timestamp.type": "CreateTime"})
        for partition in range(2):
            log = engine.log("t", partition)
            for first in range(0, SECONDS, 10):
                log.append(
                    [Record(timestamp_ms=START_MS + 1000 * n, key=b"%d" % (n % 3)) for n in range(first, first + 10)]
                )
                log.roll()
    return tmp_path / "data"


def rows(table: Any) -> list[tuple[int, int]]:
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def kept(reader: Reader, condition: ds.Expression) -> list[tuple[int, int, int]]:
    dataset = reader.topic("t").dataset()
    return [(log.name.partition, start, end) for log, start, end in dataset._ranges(condition)]  # noqa: SLF001 - the ranges that are read


def test_an_upper_bound_of_time_skips_segments_of_a_tier(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=(tmp_path / "tier").as_uri()) as engine:
        engine.create_topic("t", config={"message.timestamp.type": "CreateTime"})
        for first in (20, 0, 40):
            engine.log("t", 0).append(
                [Record(timestamp_ms=START_MS + 1000 * n) for n in range(first + 9, first - 1, -1)]
            )
            engine.log("t", 0).roll()
        engine.offload()
    with open_reader((tmp_path / "tier").as_uri()) as reader:
        assert kept(reader, ds.field("timestamp") < stamp(20)) == [(0, 10, 20)]
        assert kept(reader, ds.field("timestamp") <= stamp(20)) == [(0, 0, 20)]
        assert kept(reader, ds.field("timestamp") < stamp(0)) == []
        assert reader.topic("t").dataset().to_table(filter=ds.field("timestamp") < stamp(5)).num_rows == 5


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ((OFFSET >= 12) & (OFFSET < 19), [(0, 10, 20), (1, 10, 20)]),
        ((OFFSET == 5) & (PARTITION == 1), [(1, 0, 10)]),
        (OFFSET.isin([3, 55]), [(0, 0, 10), (0, 50, 60), (1, 0, 10), (1, 50, 60)]),
        ((PARTITION == 0) | (OFFSET >= 50), [(0, 0, 60), (1, 50, 60)]),
        (ds.field("timestamp") >= stamp(45), [(0, 40, 60), (1, 40, 60)]),
        ((ds.field("timestamp") > stamp(58)) & (PARTITION == 0), [(0, 50, 60)]),
        (ds.field("timestamp") < stamp(5), [(0, 0, 60), (1, 0, 60)]),
        (OFFSET > 60, []),
        (ds.field("key") == b"1", [(0, 0, 60), (1, 0, 60)]),
        (ds.field("timestamp").is_null(), [(0, 0, 60), (1, 0, 60)]),
    ],
    ids=str,
)
def test_segments_without_a_match_are_not_read(
    folder: Path, condition: ds.Expression, expected: list[tuple[int, int, int]]
) -> None:
    with open_reader(folder) as reader:
        assert kept(reader, condition) == expected
        dataset = reader.topic("t").dataset()
        all_records = reader.topic("t").scan().to_arrow()
        assert dataset.to_table(filter=condition).equals(all_records.filter(condition))
        assert dataset.count_rows(filter=condition) == all_records.filter(condition).num_rows


def destroy(file: Path) -> None:
    """Replace all bytes of a file, so that a read of it fails."""
    file.write_bytes(b"\xff" * file.stat().st_size)


def test_the_files_of_other_segments_may_be_damaged(folder: Path) -> None:
    """This proves that the other files are not read: a read of all segments fails."""
    with open_reader(folder) as reader:
        dataset = reader.topic("t").dataset()
        for name in ("t-0/00000000000000000030.log", "t-1/00000000000000000000.log"):
            destroy(folder / name)
        table = dataset.to_table(columns=["offset"], filter=(OFFSET < 30) & (PARTITION == 0))
        assert table["offset"].to_pylist() == list(range(30))
        with pytest.raises(CorruptBatchError):
            dataset.to_table(columns=["key"])
        assert isinstance(dataset.error, CorruptBatchError)


def test_large_segments_are_read_in_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_dataset, "PIECE_BYTES", 100)
    with open_reader(folder) as reader:
        ranges = kept(reader, (OFFSET == 25) & (PARTITION == 0))
        ((_, start, end),) = ranges
        assert start <= 25 < end < start + 10
        assert rows(reader.topic("t").dataset().to_table(filter=OFFSET == 25)) == [(0, 25), (1, 25)]


@pytest.mark.parametrize("condition", [None, OFFSET >= 57], ids=["all", "filter"])
def test_columns_may_be_names_or_expressions(folder: Path, condition: ds.Expression | None) -> None:
    with open_reader(folder) as reader:
        dataset, all_records = reader.topic("t").dataset(), reader.topic("t").scan().to_arrow()
        expected = all_records if condition is None else all_records.filter(condition)
        assert dataset.to_table(columns=["key"], filter=condition).equals(expected.select(["key"]))
        assert dataset.scanner(columns=["key", "offset"], filter=condition).to_reader().read_all().column_names == [
            "key",
            "offset",
        ]
        twice = dataset.to_table(columns={"twice": OFFSET * 2}, filter=condition)
        assert twice["twice"].to_pylist() == [2 * offset for _, offset in rows(expected)]
        assert dataset.head(3, filter=condition).equals(expected.slice(0, 3).combine_chunks())
        assert dataset.scanner(columns=[], filter=condition).count_rows() == expected.num_rows


def test_duckdb_pushes_conditions_down(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="the extra sql is not installed")
    with open_reader(folder) as reader, duckdb.connect() as connection:
        dataset = reader.topic("t").dataset()
        connection.register("t", dataset)
        destroy(folder / "t-0/00000000000000000030.log")
        query = 'select count(*), max("offset") from t where "offset" between 5 and 14 and partition in (0, 1)'
        assert connection.sql(query).fetchall() == [(20, 14)]
        assert connection.sql("select count(distinct key) from t where partition = 1").fetchall() == [(3,)]


def test_polars_pushes_conditions_down(folder: Path) -> None:
    polars = pytest.importorskip("polars", reason="the extra polars is not installed")
    with open_reader(folder) as reader:
        destroy(folder / "t-0/00000000000000000030.log")
        frame = polars.scan_pyarrow_dataset(reader.topic("t").dataset())
        filtered = frame.filter((polars.col("offset") < 3) & (polars.col("partition") == 0)).select("key").collect()
        assert filtered["key"].to_list() == [b"0", b"1", b"2"]


def test_an_unknown_isolation_is_refused(folder: Path) -> None:
    with open_reader(folder) as reader, pytest.raises(ConfigError, match="isolation"):
        reader.topic("t").dataset(isolation="committed")
