"""Jobs on Spark: their results, files and output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import stratalog_spark as jobs
from command_runs import printed_items
from stratalog import Record, open_engine, open_reader
from stratalog.errors import UnknownTopicError
from stratalog_spark import session
from stratalog_spark.jobs import compact
from stratalog_spark.jobs.packing import partition_keys


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Return a tier with the topic ``orders``: two partitions with 300 records each, of 50 keys.

    Record n has the timestamp 86,400,000 + n.
    """
    folder = tmp_path / "tier"
    folder.mkdir()
    with open_engine(tmp_path / "data", tier=folder.as_uri()) as engine:
        engine.create_topic("orders", partitions=2, config={"segment.bytes": 4_000, "index.interval.bytes": 500})
        for partition in (0, 1):
            log = engine.log("orders", partition)
            for start in range(0, 300, 10):
                log.append([record(number) for number in range(start, start + 10)])
            log.roll()
        engine.offload()
    return folder


def record(number: int) -> Record:
    key = None if number % 100 == 3 else b"key-%d" % (number % 50)
    return Record(timestamp_ms=86_400_000 + number, key=key, value=None if number % 100 == 7 else b"v" * 20)


def damage(folder: Path) -> Path:
    path = min(folder.rglob("*.seg"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    return path


@pytest.fixture
def command(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs ``stratalog spark`` on the session of the tests. A new JVM would take 10 s."""
    from stratalog.cli.app import run  # noqa: PLC0415 - needs the extra cli

    monkeypatch.setattr(session, "open_session", lambda *_: spark)
    monkeypatch.setattr("pyspark.sql.SparkSession.stop", lambda _: None)
    return lambda *arguments: run(["spark", *map(str, arguments)])


@pytest.fixture
def progress_calls() -> list[tuple[int, int]]:
    return []


def test_verify_looks_into_every_segment(spark: Any, tier: Path, progress_calls: list[tuple[int, int]]) -> None:
    sound_report = jobs.verify(
        spark, tier.as_uri(), progress=lambda done_bytes, total_bytes: progress_calls.append((done_bytes, total_bytes))
    )
    assert sound_report.ok
    assert (sound_report.logs, sound_report.segments) == (2, len(list(tier.rglob("*.seg"))))
    assert all(0 <= done_bytes <= total_bytes for done_bytes, total_bytes in progress_calls)
    path = damage(tier)
    (path.parent / f"{int(path.name[:20]):020}-0-stray.seg").write_bytes(b"left behind")
    damage_report = jobs.verify(spark, tier.as_uri())
    assert [(Path(item.place).name, item.kind) for item in damage_report.wrong] == [(path.name, "log")]
    assert [Path(item.place).name for item in damage_report.orphans] == [f"{int(path.name[:20]):020}-0-stray.seg"]


def test_stats_count_what_is_there(spark: Any, tier: Path) -> None:
    all_stats = jobs.stats(spark, tier.as_uri(), topics=["orders"])
    assert [log_stats.log.partition for log_stats in all_stats] == [0, 1]
    for log_stats in all_stats:
        assert (log_stats.records, log_stats.without_key, log_stats.tombstones, log_stats.damaged) == (300, 3, 3, 0)
        assert (log_stats.first_offset, log_stats.last_offset) == (0, 299)
        assert (log_stats.first_ms, log_stats.last_ms) == (86_400_000, 86_400_299)
        assert log_stats.value_bytes == 297 * 20
        assert log_stats.keys == 50
        assert sum(log_stats.times.counts.values()) == 300
    with pytest.raises(UnknownTopicError, match="strangers"):
        jobs.stats(spark, tier.as_uri(), topics=["strangers"])


def test_export_writes_what_is_new_as_parquet(
    spark: Any, tier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., int]
) -> None:
    target = tmp_path / "out"
    assert command("export", tier.as_uri(), target, "--schema", "json", "--fields", "a long", "--json") == 0
    *_, summary = printed_items(capsys)
    assert (summary["rows"], summary["malformed"], summary["run"]) == (600, 594, 1)
    row_counts = spark.read.parquet(str(target)).groupBy("topic", "date", "partition").count().collect()
    assert sorted((row["topic"], str(row["date"]), row["partition"], row["count"]) for row in row_counts) == [
        ("orders", "1970-01-02", 0, 300),
        ("orders", "1970-01-02", 1, 300),
    ]
    assert command("export", tier.as_uri(), target, "--partition-by", "hour") == 2
    assert "exported with schema='json', not 'raw'" in capsys.readouterr().err


def test_a_topic_is_compacted_erased_and_converted(
    tier: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = tier.as_uri()
    assert command("compact", uri, "-t", "orders", "--any-policy") == 2
    assert "take-over option" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(compact, "ALONE_RECORDS", 0)  # treats the logs as too large for one task
        assert command("compact", uri, "-t", "orders", "--any-policy", "--take-over", "--json") == 0
    *_, summary = printed_items(capsys)
    assert (summary["before"], summary["after"]) == (600, 100)
    assert 0 < summary["shuffled_bytes"] < 100 * 20 + 500
    assert command("compact", uri, "-t", "orders", "--any-policy", "--json") == 0
    *_, summary = printed_items(capsys)
    assert (summary["before"], summary["after"], summary["shuffled_bytes"]) == (100, 100, 0)
    assert command("erase", uri, "--key", "key-1", "--key-hex", b"key-2".hex(), "--json") == 0
    *_, summary = printed_items(capsys)
    assert summary["records"] == 4
    assert command("convert", uri, "-t", "orders", "--compression", "zstd") == 0
    capsys.readouterr()
    assert command("merge", uri, "--segment-bytes", "3000", "--json") == 0
    printed = printed_items(capsys)
    assert all(
        row["segments_after"] < row["segments_before"] and row["bytes_after"] == row["bytes_before"] for row in printed
    )
    with open_reader(uri) as reader:
        for partition in (0, 1):
            rows = list(reader.log("orders", partition).records())
            assert {row.key for row in rows} == {b"key-%d" % number for number in range(50)} - {b"key-1", b"key-2"}
            assert len(rows) == 48


def test_partition_keys_are_those_of_sparks_hash(spark: Any) -> None:
    keys = partition_keys(13)
    rows = spark.createDataFrame([(key,) for key in keys], "key int").selectExpr("pmod(hash(key), 13) AS place")
    assert [row["place"] for row in rows.collect()] == list(range(13))


def test_the_pipeline_of_the_examples_ends_with_the_same_on_both_sides(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parent.parent.parent / "examples" / "pipeline" / "pipeline.py"
    pipeline = run_path(str(path))
    monkeypatch.setattr(jobs, "local_session", lambda *_, **__: spark)
    monkeypatch.setattr("pyspark.sql.SparkSession.stop", lambda _: None)
    pipeline["run"](tmp_path, "the one of the tests")
    assert "15,467 clicks, 339 of them bought: the same on both sides" in capsys.readouterr().out
    assert (tmp_path / "sessions.svg").read_text(encoding="utf-8").count("<rect") > 50


def test_the_command_prints_a_table_or_json_and_draws(
    tier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., int]
) -> None:
    picture = tmp_path / "picture.svg"
    assert command("stats", tier.as_uri(), "--json", "--picture", picture) == 0
    rows = printed_items(capsys)
    assert [(row["partition"], row["records"], row["first_time"]) for row in rows] == [
        (0, 300, "1970-01-02T00:00:00Z"),
        (1, 300, "1970-01-02T00:00:00Z"),
    ]
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    damage(tier)
    assert command("verify", tier.as_uri(), "--topic", "orders") == 1
    assert "wrong 1" in capsys.readouterr().out
    assert command("stats", tier.as_uri(), "--conf", "nonsense") == 2
    assert "NAME=VALUE" in capsys.readouterr().err
