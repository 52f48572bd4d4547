"""Writer of the start of a segment's Parquet file: row groups, page indexes and frames."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Self

from stratalog.spi import Buffer
from stratalog_formats.layouts.parquet_directory import END_BYTES, MAGIC, Directory, StoredGroup, compress
from stratalog_formats.layouts.parquet_rows import Group, import_pyarrow, row_schema
from stratalog_formats.layouts.spool import Spool

_PAGE_BYTES: Final = 256 << 10
_DICTIONARIES: Final = ["partition", "timestamp_type", "leader_epoch", "key", "headers.list.element.key"]
_DELTAS: Final = dict.fromkeys(("offset", "timestamp", "producer_timestamp"), "DELTA_BINARY_PACKED")
_STATISTICS: Final = ["offset", "timestamp"]
_NO_BYTES: Final = hashlib.sha256().digest()


class GroupWriter:
    """Writer of the row groups and frames of one segment. Use a writer in a ``with`` statement."""

    def __init__(self, spool: Spool, level: int) -> None:
        pa = import_pyarrow()
        self._spool, self._sink = spool, _Sink(spool)
        self._groups: list[StoredGroup] = []
        self._frames: list[bytes] = []
        schema, parquet = row_schema(), pa.parquet
        self._writer: Any = parquet.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression="zstd",
            compression_level=level,
            use_dictionary=_DICTIONARIES,
            column_encoding=_DELTAS,
            write_statistics=_STATISTICS,
            write_page_index=True,
            data_page_size=_PAGE_BYTES,
            sorting_columns=[parquet.SortingColumn(schema.get_field_index("offset"))],
        )

    def add(self, group: Group) -> None:
        """Write the rows of the next group to the spool. Keep the frames of the group in memory until ``finish``."""
        rows, stored_bytes, sha256 = 0, 0, _NO_BYTES
        if group.rows is not None and group.rows.num_rows:
            rows = group.rows.num_rows
            self._writer.write_table(group.rows, row_group_size=rows)
            stored_bytes, sha256 = self._sink.take_size_and_hash()
        frames = compress(group.frames)
        self._frames.append(frames)
        frames_sha256 = hashlib.sha256(frames).digest()
        self._groups.append(
            StoredGroup(group.log_bytes, stored_bytes, rows, len(frames), int(group.is_complete), sha256, frames_sha256)
        )

    def finish(self) -> Directory:
        """Write page indexes and frames, and return the directory, which contains Parquet's footer.

        The footer is not written to the spool, because it must be at the end of the object.
        """
        self._sink.deferred = bytearray()
        self._writer.close()
        last_bytes = bytes(self._sink.deferred)
        footer_bytes = END_BYTES + int.from_bytes(last_bytes[-END_BYTES : -len(MAGIC)], "little")
        self._sink.deferred = None
        self._sink.write(last_bytes[:-footer_bytes])
        between_bytes, between_sha256 = self._sink.take_size_and_hash()
        for frames in self._frames:
            self._spool.write(frames)
        return Directory(self._groups, between_bytes, between_sha256, last_bytes[-footer_bytes:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.deferred = bytearray()  # so that close() does not write to the spool after an error
        self._writer.close()


class _Sink:
    """File object for Parquet's writer. It writes bytes to the spool and hashes them, or adds them to ``deferred``."""

    closed = False

    def __init__(self, spool: Spool) -> None:
        self._spool, self._hash, self._size_bytes = spool, hashlib.sha256(), 0
        self.deferred: bytearray | None = None

    def write(self, data: Buffer) -> int:
        """Write ``data`` to the spool, or add it to ``deferred``. Return the size of ``data`` in bytes."""
        size_bytes = memoryview(data).nbytes
        if self.deferred is None:
            self._spool.write(data)
            self._hash.update(data)
            self._size_bytes += size_bytes
        else:
            self.deferred += data
        return size_bytes

    def take_size_and_hash(self) -> tuple[int, bytes]:
        """Return size and SHA-256 of the bytes that were written to the spool since the last call of this method."""
        size_and_hash = self._size_bytes, self._hash.digest()
        self._size_bytes, self._hash = 0, hashlib.sha256()
        return size_and_hash

    def flush(self) -> None:
        """Do nothing: ``write`` has no buffer."""

    def close(self) -> None:
        """Do nothing: the owner of the spool closes it."""
