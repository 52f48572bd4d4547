"""Logs whose index formats are not installed: they can be read but not written. The plugin restores the indexes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog import Engine, Record, open_engine, open_reader
from stratalog.errors import UnknownComponentError
from stratalog.log.read.log_reader import LogReader
from stratalog.spi import ExtraIndex, IndexFormat, OpenContext, Provider, hookimpl
from stratalog_formats.indexes.offset import OffsetIndex
from stratalog_formats.indexes.time import TimeIndex
from stratalog_formats.indexes.transaction import TransactionIndex

COUNT = 60
NAMES = ("my_offset", "my_time", "my_transaction")
USUAL = ("offset", "time", "transaction")


class MyOffset(OffsetIndex):
    suffix = ".myoffset"


class MyTime(TimeIndex):
    suffix = ".mytime"


class MyTransaction(TransactionIndex):
    suffix = ".mytxn"


class Plugin:
    @hookimpl
    def stratalog_index_formats(self) -> Sequence[Provider[IndexFormat[Any]]]:
        return (
            Provider(name="my_offset", open=lambda _: MyOffset()),
            Provider(name="my_time", open=lambda _: MyTime()),
            Provider(name="my_transaction", open=lambda _: MyTransaction()),
        )


def fill(engine: Engine, formats: Sequence[str]) -> None:
    config = {"index.formats": ",".join(formats), "segment.bytes": 1000, "index.interval.bytes": 100}
    engine.create_topic("t", config={**config, "retention.ms": -1})
    engine.create_topic("empty", config=config)
    log = engine.log("t", 0)
    with engine.producer(transactional_id="p") as producer:
        for number in range(COUNT):
            if number % 10 == 0:
                producer.begin_transaction()
                producer.send("t", value=b"aborted", partition=0, timestamp_ms=1000 + number)
                producer.flush()
                producer.abort_transaction()
            log.append([Record(value=b"%d" % number * 10, timestamp_ms=1000 + number)])


def values(log: LogReader, isolation: str = "read_committed") -> list[bytes | None]:
    return [record.value for record in log.records(isolation=isolation)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "formats",
    [NAMES, ("my_offset", *USUAL[1:]), ("offset", "my_time", "transaction"), (*USUAL[:2], "my_transaction")],
    ids=["all", "offset", "time", "transaction"],
)
@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.long
def test_a_log_is_read_without_its_index_formats_and_not_written_to(
    tmp_path: Path,
    formats: Sequence[str],
    clean: bool,  # noqa: FBT001 - parametrized
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        fill(engine, formats)
        log = engine.log("t", 0)
        expected = values(log), values(log, "read_uncommitted"), log.offset_for_timestamp(1030)
    assert len(expected[0]) == COUNT < len(expected[1])
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    before = contents(tmp_path / "t-0"), contents(tmp_path / "empty-0")
    missing = next(name for name in formats if name in NAMES)
    with caplog.at_level(logging.WARNING), open_engine(tmp_path) as engine:
        assert f"no index format '{missing}' is installed" in caplog.text
        log = engine.log("t", 0)
        assert (values(log), values(log, "read_uncommitted"), log.offset_for_timestamp(1030)) == expected
        for topic in ("t", "empty"):
            read_only_log = engine.log(topic, 0)
            with pytest.raises(UnknownComponentError, match=rf"{topic}-0 is read-only .* '{missing}' is installed"):
                read_only_log.append([Record(value=b"v")])
        engine.alter_topic("t", {"max.message.bytes": 2000})
        assert values(engine.log("t", 0)) == expected[0]
        engine.create_topic("other")
        engine.log("other", 0).append([Record(value=b"v")])
        assert engine.run_cleaner() == ()
        engine.apply_retention()
    assert (contents(tmp_path / "t-0"), contents(tmp_path / "empty-0")) == before
    with open_reader(tmp_path) as reader:
        assert values(reader.log("t", 0)) == expected[0]
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        log = engine.log("t", 0)
        log.append([Record(value=b"more")])
        assert values(log) == [*expected[0], b"more"]


def test_other_index_formats_make_the_log_writable_once_it_is_opened_again(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        fill(engine, NAMES)
        expected = values(engine.log("t", 0))
    with open_engine(tmp_path) as engine:
        engine.alter_topic("t", {"index.formats": None})
        assert values(engine.log("t", 0)) == expected
        with pytest.raises(UnknownComponentError):
            engine.log("t", 0).append([Record(value=b"v")])
    with open_engine(tmp_path) as engine:
        engine.log("t", 0).append([Record(value=b"more")])
        assert values(engine.log("t", 0)) == [*expected, b"more"]


def test_an_extra_index_that_is_not_installed_keeps_no_log_from_being_written_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Extra:
        @hookimpl
        def stratalog_extra_indexes(self) -> Sequence[Provider[ExtraIndex]]:
            return (Provider(name="keys", open=self.open),)

        def open(self, context: OpenContext) -> ExtraIndex:
            raise AssertionError(f"nothing is made: {context}")

    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        with pytest.raises(UnknownComponentError, match="keys"):
            engine.alter_topic("t", {"index.extra": "keys"})
    topics = tmp_path / "stratalog-topics.json"
    topics.write_text(topics.read_text().replace('"config": {}', '"config": {"index.extra": ["keys"]}'))
    with caplog.at_level(logging.WARNING), open_engine(tmp_path) as engine:
        assert "logs are opened without extra index keys" in caplog.text
        engine.log("t", 0).append([Record(value=b"v", key=b"k")])
        assert [record.value for record in engine.log("t", 0).records_with_key(b"k")] == [b"v"]
    with open_engine(tmp_path, plugins=[Extra()]) as engine:
        assert values(engine.log("t", 0)) == [b"v"]


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
def test_a_log_whose_record_format_is_not_installed_is_not_cut(tmp_path: Path, clean: bool) -> None:  # noqa: FBT001 - parametrized
    """Recovery must not treat its batches as damage, which it would truncate."""
    with open_engine(tmp_path) as engine:
        fill(engine, USUAL)
        expected = values(engine.log("t", 0))
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    before = contents(tmp_path / "t-0")
    with (
        open_engine(tmp_path, config={"plugins.block": ["formats"]}) as engine,
        pytest.raises(UnknownComponentError, match="no record format with magic 2 is installed"),
    ):
        engine.log("t", 0).append([Record(value=b"v")])
    assert contents(tmp_path / "t-0") == before
    with open_engine(tmp_path) as engine:
        assert values(engine.log("t", 0)) == expected
