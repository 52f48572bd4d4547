"""Interface of the tables that ``sync`` writes. Iceberg and Delta tables implement it."""

from __future__ import annotations

import io
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq

from stratalog.errors import ConfigError, StorageError
from stratalog_spark.parquet.parquet_files import ParquetFile

PERIODS: Final = ("day", "hour", "none")
BUCKETS: Final = "bucket"
LAYOUT: Final = "stratalog.layout"  # property of a table


class TableConflictError(StorageError):
    """Another program created or changed the table at the same time."""

    advice = "start the query again; only one query may write a topic to a table"


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings of a table. They never change.

    Attributes:
        topic_id: id of the topic; empty if the topic has none.
        schema: kind of the values: ``raw``, ``json``, ``avro``, ``protobuf``; ``quarantine`` in a table of bad records.
        partition_by: ``day``, ``hour``, ``none``, or ``bucket`` for a table with one row for each key.
        buckets: number of buckets; 0 if there are none.
    """

    topic: str
    topic_id: str
    schema: str
    partition_by: str
    buckets: int = 0

    def to_json(self) -> str:
        """Return the settings as JSON text, which a property of the table stores."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None, table: str) -> Layout:
        """Parse the output of ``to_json``. Raise ConfigError if ``sync`` did not create the table."""
        try:
            return cls(**json.loads(text or ""))
        except (ValueError, TypeError):
            raise ConfigError(f"{table} exists, and was not created by sync: name another table") from None


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file in the current state of a table.

    Attributes:
        name: name of the file, relative to the folder of the table's data files.
        period: number of the table's partition: days or hours since 1970, or the number of the bucket. None for rows
            without timestamp; 0 if the table is not partitioned. The files that a task writes have such numbers, too.
        handle: pyiceberg's description of the file; None for Delta.
    """

    name: str
    size_bytes: int
    period: int | None
    handle: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mark:
    """Position of the stream. Each commit stores it together with the files.

    Attributes:
        number: number of the commit, from 1 on. In a quarantine, it is the number of the data table's commit with these
            bad records.
        ends: offset up to which each partition was synced (exclusive).
        quarantined: names of the files of bad records that belong to the commit.
    """

    number: int
    ends: Mapping[int, int]
    quarantined: Sequence[str] = ()


@dataclass(frozen=True)
class FileStore(ABC):
    """The data files of a table. Can be pickled. Readers ignore a stored file until a commit adds it.

    ``options`` may be credentials, and are never printed.
    """

    location: str
    options: Mapping[str, str] = field(repr=False)

    def put(self, local: str, name: str) -> None:
        """Store a copy of a local file atomically."""
        with Path(local).open("rb") as source, closing(self._create(name)) as target:
            shutil.copyfileobj(source, target, 1 << 20)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files. A file that does not exist is ignored."""
        delete = self._open_deleter()
        for name in names:
            with suppress(FileNotFoundError):
                delete(name)

    def describe(self, name: str) -> ParquetFile:
        """Return the description of a stored file, for a table without partitions."""
        with self.open(name) as stream:
            size_bytes = stream.seek(0, io.SEEK_END) or stream.tell()
            return ParquetFile.of(name, size_bytes, 0, pq.read_metadata(stream))

    @abstractmethod
    def open(self, name: str) -> Any:
        """Open the data file ``name`` for reading, and return the file object."""

    @abstractmethod
    def _create(self, name: str) -> Any:
        """Create the data file ``name``, and return the file object."""

    @abstractmethod
    def _open_deleter(self) -> Callable[[str], object]:
        """Return a function that deletes the data file of a name, or raises FileNotFoundError."""


class LakeTable(Protocol):
    """One table in the state in which it was opened.

    Only commits through this object change the state. Used by one thread. Methods that change the table raise
    TableConflictError if another program created or changed the table at the same time; nothing is changed then. They
    raise ConfigError if the table format cannot store a column.

    Attributes:
        name: name for messages.
        exists: False until the table is created.
    """

    name: str
    exists: bool

    @property
    def layout(self) -> Layout:
        """Settings of the table. Raises ConfigError if ``sync`` did not create the table."""

    @property
    def columns(self) -> Any:
        """``pyarrow.Schema`` of the columns of the data files."""

    @property
    def file_schema(self) -> Any:
        """``columns`` with the metadata for data files, such as field ids."""

    @property
    def number(self) -> int:
        """Number of the last commit of the stream; 0 before the first commit."""

    @property
    def files(self) -> FileStore:
        """Access to the data files."""

    def create(self, layout: Layout, columns: Any) -> None:
        """Create the table with these settings, and the columns of a ``pyarrow.Schema``."""

    def add_columns(self, columns: Any) -> None:
        """Add the columns and nested fields of a ``pyarrow.Schema`` that are not in the table."""

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset up to which each partition was synced (exclusive).

        The table may lack some records below this offset, such as bad records. A partition that was never synced
        is left out.
        """

    def find_quarantined(self, after: int) -> tuple[int, Sequence[str]]:
        """Return the number of the last commit that had bad records, and the names of the files with these records.

        Return (0, ()) if there is no such commit after the commit ``after``.
        """

    def live_files(self, periods: Iterable[int | None]) -> list[LiveFile]:
        """Return the current data files of the table's partitions ``periods``.

        ``LiveFile.period`` describes these numbers.
        """

    def commit(self, added_files: Sequence[ParquetFile], removed_files: Sequence[LiveFile], mark: Mark | None) -> None:
        """Add files, remove files, and store the mark, by one commit.

        ``mark`` is the new position of the stream; None if the commit does not change the rows of the table.
        """


class TableTarget(Protocol):
    """Name of a table, and the options to open it. Can be pickled."""

    def open_table(self) -> LakeTable:
        """Return the table in its current state. The table need not exist yet."""

    def quarantine(self) -> TableTarget:
        """Return the target of the default quarantine: the table for records that cannot be parsed."""
