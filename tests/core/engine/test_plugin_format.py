"""A record format of a plugin: a topic selects it, its batches have its magic, and only the plugin can read them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stratalog import Log, Record, RecordColumns, open_engine
from stratalog.errors import ConfigError, PluginError, StorageError, UnknownComponentError
from stratalog.log.prepare.preparer import Preparer
from stratalog.model.batches import BatchTable
from stratalog.spi import (
    BatchHeader,
    Buffer,
    Codec,
    Fields,
    OpenContext,
    PreparedBatches,
    Provider,
    RecordFormat,
    hookimpl,
)
from stratalog_formats.records.batches import BatchFormat

MAGIC_AT = 16
RECORDS = [Record(key=b"k%d" % number, value=b"v" * 50, timestamp_ms=number) for number in range(3)]


def with_magic(table: BatchTable, magic: int) -> BatchTable:
    return BatchTable(magic, table.columns, table.stop, table.stop_position, table.reason)


class Magic5Format(RecordFormat):
    """Kafka's batches of magic 2 with magic 5 in byte 16, which their CRC does not cover."""

    magic: ClassVar[int] = 5

    def __init__(self, inner: RecordFormat) -> None:
        self._inner = inner

    def _plain(self, data: Buffer, start: int = 0) -> bytearray:
        """Return the bytes with magic 2 in each whole batch."""
        rewritten, position = bytearray(data), start
        while position + MAGIC_AT < len(rewritten) and rewritten[position + MAGIC_AT] == self.magic:
            rewritten[position + MAGIC_AT] = 2
            position += 12 + max(int.from_bytes(rewritten[position + 8 : position + 12], "big"), 1)
        return rewritten

    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        if end - start > MAGIC_AT and memoryview(data)[start + MAGIC_AT] != self.magic:
            return BatchTable.from_rows(self.magic, [], self._inner.scan(data, end, end, check_crc=False).stop, start)
        return with_magic(self._inner.scan(self._plain(data, start), start, end, check_crc=check_crc), self.magic)

    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        rewritten = self._plain(data, batches.position[0] if len(batches) else 0)
        return self._inner.decode(rewritten, with_magic(batches, 2), fields=fields, limit_bytes=limit_bytes)

    def encode(
        self,
        records: Sequence[Record] | RecordColumns,
        header: BatchHeader,
        codec: Codec | None,
        level: int | None,
        *,
        keep_offsets: bool = False,
    ) -> bytearray:
        batch = self._inner.encode(records, header, codec, level, keep_offsets=keep_offsets)
        batch[MAGIC_AT] = self.magic
        return batch

    def assign(self, batches: PreparedBatches, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> None:
        self._inner.assign(batches, base_offset, leader_epoch, append_time_ms)


class Plugin:
    """Plugin that offers the format; ``error`` is raised when the format opens."""

    def __init__(self, error: StorageError | None = None) -> None:
        self._error = error

    def _open(self, context: OpenContext) -> RecordFormat:
        if self._error is not None:
            raise self._error
        return Magic5Format(BatchFormat(context.codecs))

    @hookimpl
    def stratalog_record_formats(self) -> Sequence[Provider[RecordFormat]]:
        return [Provider[RecordFormat](name="marked", open=self._open)]


def fill(folder: Path, **config: Any) -> None:
    with open_engine(folder, plugins=[Plugin()]) as engine:
        engine.create_topic("t", config={"record.version": "marked", **config})
        engine.log("t", 0).append(RECORDS)


def magic_at(log: Log, offset: int) -> int:
    with log.fetch(offset, 1_000) as fetched:
        return fetched.read()[MAGIC_AT]


def test_a_topic_names_a_format_of_a_plugin(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        log = engine.log("t", 0)
        assert log.config.record_version == "marked"
        log.append(RECORDS)
        assert [record.value for record in log.records()] == [record.value for record in RECORDS] * 2
        assert magic_at(log, 0) == Magic5Format.magic
        engine.alter_topic("t", {"record.version": 2})
        log.append(RECORDS)
        assert [record.offset for record in log.records()] == list(range(9))
        assert magic_at(log, 6) == 2


@pytest.mark.parametrize(("name", "magic"), [("v0", 0), ("v1", 1), ("v2", 2), ("1", 1), (0, 0)])
def test_kafkas_formats_have_numbers_and_names(tmp_path: Path, name: str | int, magic: int) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", config={"record.version": name})
        engine.log("t", 0).append(RECORDS)
        with engine.producer() as producer:
            producer.send("t", value=b"sent").result()
        assert [record.value for record in engine.log("t", 0).records()] == [b"v" * 50] * 3 + [b"sent"]
        assert magic_at(engine.log("t", 0), 0) == magic


def test_a_format_that_is_not_installed_is_refused_when_a_topic_names_it(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        with pytest.raises(UnknownComponentError, match=r"no record format 'v3' is installed; installed: .*v2"):
            engine.create_topic("t", config={"record.version": "v3"})
        for value in ("V 2", 3, -1, True, 2.0):
            with pytest.raises(ConfigError, match=r"record\.version"):
                engine.create_topic("t", config={"record.version": value})
        engine.create_topic("t")
        with pytest.raises(UnknownComponentError, match="'v3'"):
            engine.alter_topic("t", {"record.version": "v3"})


@pytest.mark.parametrize("plugins", [[], [Plugin(PluginError("no licence"))]])
@pytest.mark.parametrize("crashed", [False, True])
def test_without_its_format_a_log_is_not_opened_and_keeps_its_records(
    tmp_path: Path, plugins: list[Plugin], *, crashed: bool
) -> None:
    fill(tmp_path)
    if crashed:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    with open_engine(tmp_path, plugins=plugins) as engine:
        engine.create_topic("other")
        engine.log("other", 0).append(RECORDS)
        with pytest.raises(StorageError, match="'marked'"):
            engine.log("t", 0)
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        assert [record.offset for record in engine.log("t", 0).records()] == [0, 1, 2]


@pytest.mark.parametrize("is_stopped_first", [True, False])
def test_a_crash_after_a_format_was_given_up_and_its_plugin_removed_loses_no_record(
    tmp_path: Path, *, is_stopped_first: bool
) -> None:
    """Recovery must not decode batches of the earlier format: it would treat them as damage, and truncate the log."""
    folder, crashed = tmp_path / "data", tmp_path / "crashed"
    fill(folder)
    with open_engine(folder, plugins=[Plugin()]) as engine:
        engine.alter_topic("t", {"record.version": 2})
        if not is_stopped_first:
            engine.log("t", 0).append(RECORDS)
            shutil.copytree(folder, crashed)
    if is_stopped_first:
        with open_engine(folder) as engine:
            engine.log("t", 0).append(RECORDS)
            shutil.copytree(folder, crashed)
    with open_engine(crashed) as engine:
        assert [record.offset for record in engine.log("t", 0).records(3)] == [3, 4, 5]
    with open_engine(crashed, plugins=[Plugin()]) as engine:
        assert [record.offset for record in engine.log("t", 0).records()] == list(range(6))


@pytest.mark.parametrize("durability", ["written", "durable"])
def test_an_append_in_progress_uses_the_new_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Without the plugin, recovery would treat its batches as damage, and truncate the log there."""
    folder, crashed = tmp_path / "data", tmp_path / "crashed"
    fill(folder)
    with open_engine(folder, plugins=[Plugin()]) as engine:
        log, prepare = engine.log("t", 0), Preparer.records

        def prepare_and_alter(preparer: Preparer, records: Sequence[Record]) -> PreparedBatches:
            prepared = prepare(preparer, records)
            monkeypatch.undo()
            engine.alter_topic("t", {"record.version": 2})
            return prepared

        monkeypatch.setattr(Preparer, "records", prepare_and_alter)
        result = log.append(RECORDS, durability)
        assert (result.base_offset, result.last_offset) == (3, 5)
        log.append(RECORDS)
        assert (magic_at(log, 0), magic_at(log, 3)) == (Magic5Format.magic, 2)
        shutil.copytree(folder, crashed)
    with open_engine(crashed) as engine:
        assert [record.offset for record in engine.log("t", 0).records(3)] == [3, 4, 5, 6, 7, 8]
