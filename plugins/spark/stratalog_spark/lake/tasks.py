"""Functions of the tasks: read records, decode them, and write data files. Readers ignore the files until a commit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.reading import Split
from stratalog_spark.columns.kafka_columns import HEADERS as READ_HEADERS
from stratalog_spark.columns.row_columns import murmur2
from stratalog_spark.lake.columns import BUCKET, KEY, PREFIX, TIMESTAMP
from stratalog_spark.lake.decode import Decoder
from stratalog_spark.lake.table import BUCKETS, FileStore, Layout
from stratalog_spark.options.read_options import Options
from stratalog_spark.parquet.parquet_files import ParquetFile, PeriodWriter, clear_invalid_times, period_folders
from stratalog_spark.read.read_split import read_split

READ: Final = ("key", "value", "partition", "offset", "timestamp", READ_HEADERS)
NO_KEY: Final = "the record has no key, and the table has one row for each key"
TEMPORARY: Final = "_stratalog"  # folder for files that are deleted after the commit
_NO_TIME: Final = -(1 << 63)
_BATCH_ROWS: Final = 1 << 16
_HELD_BYTES: Final = 64 << 20  # if collected rows are larger, a task keeps only the latest record of each key
_PARQUET: Final = {"compression": "zstd", "coerce_timestamps": "us"}
_FOLDER: Final = {"day": "date", "hour": "hour", "none": "none", BUCKETS: "none"}


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a task.

    Attributes:
        files: new data files.
        bad: new files of records that could not be parsed.
        removed: names of the existing data files that ``files`` replaces.
        unknown: ids of schemas that the task did not have. If it is not empty, the result is incomplete.
        rows: number of records in ``files`` that were not in the table before.
    """

    files: list[ParquetFile]
    bad: list[ParquetFile]
    removed: list[str]
    unknown: list[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Sorted:
    """Result of ``Work.sort``: a temporary file with the latest record of each key and partition, grouped by bucket.

    Attributes:
        name: name of the file; empty if there are no records.
        buckets: for each Arrow record batch in the file: number of its bucket.
        bad: new files of records that have no key.
    """

    name: str
    buckets: list[int]
    bad: list[ParquetFile]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Input of ``Work.merge``.

    Attributes:
        parts: where the new records of the bucket are: names of files of ``Work.sort``, and numbers of Arrow record
            batches in these files.
        data: names of the bucket's current data files.
    """

    number: int
    parts: list[tuple[str, int]]
    data: list[str]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Input of ``Work.rewrite``: names of small files in one partition of a table. They become one file."""

    period: int | None
    names: list[str]


@dataclass(frozen=True)
class Work:
    """Settings of all tasks of one micro-batch, and the functions of the tasks. Spark sends both to the tasks.

    Attributes:
        missing: ids for which no schema exists.
        file_schema: columns of data files.
        bad_files: the data files of the quarantine, which have the columns ``bad_schema``.
    """

    options: Options
    layout: Layout
    schemas: Mapping[int | None, object]
    missing: frozenset[int]
    columns: pa.Schema
    file_schema: pa.Schema
    files: FileStore
    bad_files: FileStore
    bad_schema: pa.Schema

    def append(self, split: Split) -> Done:
        """Write the records of a split to data files.

        Write records that cannot be parsed to files of the quarantine.
        """
        decoder, unknown = self._decoder(), set[int]()
        with (
            self._open_data_files(_FOLDER[self.layout.partition_by]) as data_files,
            self._open_bad_files() as bad_files,
        ):
            for batch in self._read(split):
                decoded = decoder.decode(clear_invalid_times(batch))
                unknown.update(decoded.unknown)
                bad_files.add(decoded.bad)
                data_files.add(decoded.rows)
            files = data_files.finish()
            return Done(files, bad_files.finish(), [], sorted(unknown), sum(file.rows for file in files))

    def sort(self, split: Split) -> Sorted:
        """Write the latest record of each key and partition of a split to a temporary file for ``merge``.

        The file has one Arrow record batch for each bucket. Records without a key are written to files of the
        quarantine.
        """
        decoder, tables, size, limit = self._decoder(), list[Any](), 0, _HELD_BYTES
        with self._open_bad_files() as bad_files:
            for batch in self._read(split):
                keyless = clear_invalid_times(batch.filter(batch.column("key").is_null()))
                bad_files.add(decoder.quarantine_rows(keyless, [NO_KEY] * keyless.num_rows))
                tables.append(pa.Table.from_batches([batch.filter(batch.column("key").is_valid())]))
                size += tables[-1].nbytes
                if size > limit:
                    tables = [latest(pa.concat_tables(tables), each_partition=True)]
                    size = tables[0].nbytes
                    limit = max(2 * size, _HELD_BYTES)  # a fixed limit would take quadratic time for distinct keys
            quarantined = bad_files.finish()
        rows = latest(pa.concat_tables(tables), each_partition=True) if tables else None
        if rows is None or not rows.num_rows:
            return Sorted("", [], quarantined)
        rows = rows.append_column(BUCKET, buckets_of(rows["key"], self.layout.buckets))
        numbers = sorted(pc.unique(rows[BUCKET]).to_pylist())
        name = f"{TEMPORARY}/{uuid4().hex}.arrow"
        with tempfile.TemporaryDirectory(prefix="stratalog-sync-") as folder:
            local = str(Path(folder) / "sorted.arrow")
            with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                for number in numbers:
                    writer.write_batch(_combine_batches(rows.filter(pc.equal(rows[BUCKET], number))))
            self.files.put(local, name)
        return Sorted(name, numbers, quarantined)

    def merge(self, bucket: Bucket) -> Done:
        """Add the latest record of each key to a bucket, and rewrite the data files that contain earlier records.

        A tombstone only removes the earlier record of its key. If a record's schema is unknown, nothing is written.
        """
        parts = [_batch_of(self.files, name, number) for name, number in bucket.parts]
        rows = latest(latest(pa.Table.from_batches(parts), each_partition=True), each_partition=False)
        decoded = self._decoder().decode(clear_invalid_times(_combine_batches(rows)))
        if decoded.unknown:
            return Done([], [], [], sorted(decoded.unknown), 0)
        changed_keys = decoded.rows[KEY].combine_chunks()  # includes tombstones, which have rows with a null value
        tombstones = rows.filter(rows["value"].is_null())["key"].combine_chunks()
        new_rows = decoded.rows.filter(pc.invert(pc.is_in(decoded.rows[KEY], value_set=tombstones)))
        removed = list[str]()
        with self._open_data_files("none", bucket.number) as data_files, self._open_bad_files() as bad_files:
            bad_files.add(decoded.bad)
            for name in bucket.data:
                with self.files.open(name) as stream:
                    file = pq.ParquetFile(stream)
                    if pc.any(pc.is_in(file.read(columns=[KEY])[KEY], value_set=changed_keys)).as_py():
                        removed.append(name)
                        for batch in file.iter_batches():
                            data_files.add(batch.filter(pc.invert(pc.is_in(batch.column(KEY), value_set=changed_keys))))
            data_files.add(new_rows)
            return Done(data_files.finish(), bad_files.finish(), removed, [], new_rows.num_rows)

    def rewrite(self, small: Rewrite) -> Done:
        """Write the rows of several small data files to one new file.

        The commit replaces the small files with the new file.
        """
        with self._open_data_files("none", small.period) as data_files:
            for name in small.names:
                with self.files.open(name) as stream:
                    for batch in pq.ParquetFile(stream).iter_batches():
                        data_files.add(batch)
            return Done(data_files.finish(), [], list(small.names), [], 0)

    def _read(self, split: Split) -> Iterator[Any]:
        batches = read_split(self.options, READ, split)
        return (batch for batch in batches if batch.num_rows)

    def _decoder(self) -> Decoder:
        layout = self.layout
        return Decoder(layout.topic, layout.schema, self.schemas, self.missing, self.columns)

    @contextmanager
    def _open_data_files(self, partition_by: str, period: int | None = 0) -> Iterator[_Files]:
        """Return a context manager that yields a writer with one data file for each ``date`` or ``hour`` of the rows.

        If ``partition_by`` is ``none``, it writes one file for the partition ``period`` of the table (see
        ``LiveFile.period``). Otherwise ``period`` is not used.
        """
        folder_period = _FOLDER[self.layout.partition_by]

        def name(file_period: int | None) -> str:
            folders = [f"{PREFIX}{key}={value}" for key, value in period_folders(file_period, folder_period)]
            return "/".join([*folders, uuid4().hex])

        with PeriodWriter(
            self.files.put, name, partition_by=partition_by, column=TIMESTAMP, options=_PARQUET, only_period=period
        ) as writer:
            yield _Files(writer, self.file_schema, {BUCKET: period})

    @contextmanager
    def _open_bad_files(self) -> Iterator[_Files]:
        with PeriodWriter(
            self.bad_files.put, lambda _: uuid4().hex, partition_by="none", column="timestamp", options=_PARQUET
        ) as writer:
            yield _Files(writer, self.bad_schema, {})


@dataclass(frozen=True, slots=True)
class _Files:
    """Data files that a task writes.

    ``schema`` is the ``pyarrow.Schema`` of the files. ``constants`` contains the values of columns that the rows lack.
    """

    writer: PeriodWriter
    schema: Any
    constants: Mapping[str, int | None]

    def add(self, rows: Any) -> None:
        """Add rows. If the rows lack a column of the files, the column gets its value in ``constants``, or null."""
        if not rows.num_rows:
            return
        names = set(rows.schema.names)
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in names
            else pa.repeat(pa.scalar(self.constants.get(field.name), field.type), rows.num_rows)
            for field in self.schema
        ]
        for batch in pa.Table.from_arrays(columns, schema=self.schema).to_batches(max_chunksize=_BATCH_ROWS):
            self.writer.write(batch)

    def finish(self) -> list[ParquetFile]:
        """Complete the files, and return their descriptions."""
        return self.writer.finish()


def latest(rows: Any, *, each_partition: bool) -> Any:
    """Return the latest record of each key in a ``pyarrow.Table`` with the columns of a read.

    If ``each_partition`` is True, return one record for each key and partition: the record with the largest offset.
    Otherwise return one record for each key: the record with the latest timestamp. If timestamps are equal, the record
    of the largest partition is returned.
    """
    partitions = rows["partition"].to_numpy()
    if each_partition:
        keys, order = ["key", "partition"], np.lexsort((rows["offset"].to_numpy(), partitions))
    else:
        keys, order = ["key"], np.lexsort((partitions, rows["timestamp"].cast("int64").fill_null(_NO_TIME).to_numpy()))
    ordered = rows.take(pa.array(order))
    numbered = ordered.select(keys).append_column("row", pa.array(range(ordered.num_rows), pa.int64()))
    return ordered.take(numbered.group_by(keys).aggregate([("row", "max")])["row_max"])


def buckets_of(keys: Any, buckets: int) -> Any:
    """Return the bucket of each key: Kafka's murmur2 of the key without the hash's sign bit, modulo ``buckets``."""
    return pa.array((murmur2(keys.combine_chunks()) & 0x7FFFFFFF) % buckets, pa.int32())


def _combine_batches(rows: Any) -> Any:
    """Return a table as one ``pyarrow.RecordBatch``."""
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)


def _batch_of(files: FileStore, name: str, number: int) -> Any:
    with files.open(name) as stream:
        return pa.ipc.open_file(stream).get_batch(number)
