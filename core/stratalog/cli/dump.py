"""``stratalog dump``: what is in the files of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from stratalog.cli.consume import record_item
from stratalog.cli.options import json_option
from stratalog.cli.output import Output, printable
from stratalog.config.files import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.epochs.checkpoint import parse_epochs, parse_offsets
from stratalog.errors import ConfigError, CorruptionError
from stratalog.log.replay import read_marker
from stratalog.model.batches import Buffer, RecordBatch
from stratalog.model.names import (
    CLEANER_FILE,
    HIGH_WATERMARKS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_STARTS_FILE,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    SNAPSHOT_SUFFIX,
    parse_segment_file,
)
from stratalog.model.records import Fields
from stratalog.model.segments import FileSlice
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot
from stratalog.reading.open import open_host
from stratalog.reading.parts import ComponentHost
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.search import decode
from stratalog.spi.indexes import IndexRole

OFFSET_CHECKPOINTS: Final = (RECOVERY_POINTS_FILE, HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, CLEANER_FILE)


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """One file by itself, as a segment without indexes."""

    path: Path
    base_offset: int
    size_bytes: int
    descriptor: int
    env: Env
    end_offset: int = 1 << 62
    max_timestamp_ms: int = -1
    age_from_ms: int = -1

    @property
    def label(self) -> str:
        """The path."""
        return str(self.path)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``."""
        return memoryview(self.env.files.read(self.descriptor, position, size_bytes))

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """The same."""
        return FileSlice(self.read(position, size_bytes))

    def forget(self) -> bool:
        """Nothing is cached."""
        return False

    def index_entries(self, role: IndexRole) -> Buffer:
        """None."""
        del role
        return b""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--deep", is_flag=True, help="Also the records in each batch.")
@click.option("--values", is_flag=True, help="Also keys, values and headers of the records; implies --deep.")
@json_option
def dump(output: Output, files: tuple[Path, ...], *, deep: bool, values: bool) -> int:
    """Show what is in FILES: .log, .index, .timeindex, .txnindex, .snapshot, checkpoints, partition.metadata.

    The exit code is 1 if something is corrupt; everything before it is shown.
    """
    host = open_host(Settings(), (), None)
    wrong = False
    try:
        for path in files:
            try:
                _dump_file(host, output, path, deep=deep or values, values=values)
            except CorruptionError as error:
                wrong = True
                output.note(f"corrupt: {error}")
                if output.as_json:
                    output.item({"file": str(path), "corrupt": str(error), "position": error.position})
    finally:
        host.close()
    return 1 if wrong else 0


def _dump_file(host: ComponentHost, output: Output, path: Path, *, deep: bool, values: bool) -> None:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = path.name
    segment = parse_segment_file(name)
    if segment is not None and segment.suffix == LOG_SUFFIX:
        _dump_log(host, output, path, segment.base_offset, deep=deep, values=values)
    elif segment is not None and segment.suffix == SNAPSHOT_SUFFIX:
        entries = decode_snapshot(path.read_bytes(), str(path))
        _show(output, path, ProducerEntry._fields, entries)
    elif segment is not None:
        _dump_index(host, output, path, segment.base_offset, segment.suffix)
    elif name == LEADER_EPOCHS_FILE:
        _show(output, path, ("epoch", "start_offset"), parse_epochs(path.read_bytes(), str(path)))
    elif name in OFFSET_CHECKPOINTS:
        offsets = parse_offsets(path.read_bytes(), str(path))
        _show(output, path, ("topic", "partition", "offset"), ((*log, offset) for log, offset in offsets.items()))
    elif name == PARTITION_METADATA_FILE:
        lines = path.read_text(encoding="utf-8").splitlines()
        _show(output, path, ("key", "value"), (line.partition(": ")[::2] for line in lines))
    else:
        raise ConfigError(f"{path} is no file of a log that dump knows: its name says what it holds")


def _show(output: Output, path: Path, columns: tuple[str, ...], rows: Any) -> None:  # Any: tuples of many kinds
    if output.as_json:
        for row in rows:
            output.item({"file": str(path), **dict(zip(columns, row, strict=True))})
    else:
        output.table(str(path), columns, rows)


def _dump_index(host: ComponentHost, output: Output, path: Path, base_offset: int, suffix: str) -> None:
    formats = host.parts(TopicConfig()).indexes.values()
    found = next((index for index in formats if index.suffix == suffix), None)
    if found is None:
        raise ConfigError(f"no index format for {suffix} is installed")
    data = path.read_bytes()
    entries = list(found.reader(data, base_offset))
    if not entries:
        output.note(f"{path} is empty")
        return
    first = entries[0]
    columns = getattr(first, "_fields", None) or tuple(first.__dataclass_fields__)
    _show(output, path, columns, ([getattr(entry, column) for column in columns] for entry in entries))


# --- .log --------------------------------------------------------------------------------------------------------


BATCH_COLUMNS: Final = (
    "base_offset",
    "last_offset",
    "count",
    "base_sequence",
    "producer_id",
    "producer_epoch",
    "leader_epoch",
    "transactional",
    "control",
    "position",
    "timestamp_type",
    "max_timestamp_ms",
    "size_bytes",
    "magic",
    "codec",
    "crc",
)


def _dump_log(host: ComponentHost, output: Output, path: Path, base_offset: int, *, deep: bool, values: bool) -> None:
    with _opened(host, path, base_offset) as segment:
        if output.as_json or deep:
            for chunk, batch in _batches(host, segment):
                _dump_batch(host, output, segment, chunk, batch, deep=deep, values=values)
        else:
            rows = _until_corrupt(lambda: (_batch_row(host, chunk, batch) for chunk, batch in _batches(host, segment)))
            output.table(str(path), BATCH_COLUMNS, rows.found)
            if rows.error is not None:
                raise rows.error


@dataclass(slots=True)
class _Rows:
    found: list[tuple[object, ...]]
    error: CorruptionError | None = None


def _until_corrupt(rows: Callable[[], Iterator[tuple[object, ...]]]) -> _Rows:
    """All rows before the first corrupt place: a table is printed whole."""
    collected = _Rows([])
    try:
        collected.found.extend(rows())
    except CorruptionError as error:
        collected.error = error
    return collected


@contextmanager
def _opened(host: ComponentHost, path: Path, base_offset: int) -> Iterator[DumpedFile]:
    files = host.env.files
    descriptor = files.open(str(path))
    try:
        yield DumpedFile(path, base_offset, files.size_bytes(descriptor), descriptor, host.env)
    finally:
        files.close(descriptor)


def _batches(host: ComponentHost, segment: DumpedFile) -> Iterator[tuple[Chunk, RecordBatch]]:
    for chunk in walk(segment, 0, host.parts(TopicConfig())):
        for batch in chunk.batches():
            yield chunk, batch


def _batch_row(host: ComponentHost, chunk: Chunk, batch: RecordBatch) -> tuple[object, ...]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.record_count,
        batch.base_sequence,
        batch.producer_id,
        batch.producer_epoch,
        batch.leader_epoch,
        batch.is_transactional,
        batch.is_control,
        chunk.position + batch.position,
        str(batch.timestamp_type),
        batch.max_timestamp_ms,
        batch.size_bytes,
        batch.magic,
        host.parts(TopicConfig()).codecs.name_of(batch.codec_id),
        batch.crc,
    )


def _dump_batch(
    host: ComponentHost,
    output: Output,
    segment: DumpedFile,
    chunk: Chunk,
    batch: RecordBatch,
    *,
    deep: bool,
    values: bool,
) -> None:
    header = dict(zip(BATCH_COLUMNS, _batch_row(host, chunk, batch), strict=True))
    if batch.delete_horizon_ms is not None:
        header["delete_horizon_ms"] = batch.delete_horizon_ms
    marker = read_marker(chunk.data, batch, host.parts(TopicConfig()))
    if marker is not None:
        header |= {"marker": marker.kind.name, "coordinator_epoch": marker.coordinator_epoch}
    records = list(_records(host, segment, chunk, batch, values=values)) if deep else []
    if output.as_json:
        output.item({"file": segment.label, **header} | ({"records": records} if deep else {}))
        return
    output.line(" ".join(f"{name}={value}" for name, value in header.items()))
    for record in records:
        output.line("| " + " ".join(f"{name}={printable(str(value))}" for name, value in record.items()))


def _records(
    host: ComponentHost, segment: DumpedFile, chunk: Chunk, batch: RecordBatch, *, values: bool
) -> Iterator[dict[str, object]]:
    for table in chunk.tables:
        wanted = table.keep([position == batch.position for position in table.position])
        for columns in decode(chunk, wanted, segment, host.parts(TopicConfig()), Fields.ALL):
            for record in columns.to_records():
                if values:
                    item = record_item("", record)
                    yield {name: value for name, value in item.items() if name not in {"topic", "partition"}}
                else:
                    yield {
                        "offset": record.offset,
                        "timestamp_ms": record.timestamp_ms,
                        "key_size": -1 if record.key is None else len(record.key),
                        "value_size": -1 if record.value is None else len(record.value),
                        "header_keys": [name for name, _ in record.headers],
                    }
