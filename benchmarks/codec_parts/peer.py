"""A peer: a library that can do some of the operations in a process of Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from codec_parts.operations import GATHERED_TIMES, Operation
from codec_parts.workloads import Row, Workload, canonical
from harness import Job
from stratalog.model.arrow import arrow_schema

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - inside functions pa is the module at run time

Lists: TypeAlias = tuple[list[int], list[int], list[bytes | None], list[bytes | None], list[Any]]
Maker: TypeAlias = Callable[[Workload], Job]


class Peer(ABC):
    """One library.

    Attributes:
        name: of the side.
        distribution: its name on the package index.
    """

    name: str
    distribution: str

    @abstractmethod
    def makers(self) -> dict[Operation, Maker]:
        """Return a maker of the job for each operation that the library has."""

    def cannot(self, codec: str) -> str | None:
        """Why it cannot decode and encode this codec here, None if it can."""
        del codec
        return None


def consume(parts: Iterable[Iterable[object]]) -> None:
    """Create and drop every object; the loop runs in C for all peers."""
    for part in parts:
        deque(part, maxlen=0)


def lists_job(parts: Callable[[], Iterator[Iterable[Any]]]) -> Job:
    """Decoding to lists, a list a column: offsets, timestamps, keys, values, headers."""
    return Job(lambda: lists_of(parts()), lambda: canonical(zip(*lists_of(parts()), strict=True)))


def gathered_job(once: Job) -> Job:
    """The same for many buffers, all results being kept until the last is there: the collector walks what it can see."""
    turns = range(GATHERED_TIMES)
    return Job(lambda: [once.call() for _ in turns], lambda: b"".join(once.outcome() for _ in turns))


def lists_of(parts: Iterable[Iterable[Any]]) -> Lists:
    """Columns from record objects; of five ways to write it, the fastest."""
    lists: Lists = ([], [], [], [], [])
    add_offset, add_stamp, add_key, add_value, add_headers = (column.append for column in lists)
    for part in parts:
        for record in part:
            add_offset(record.offset)
            add_stamp(record.timestamp)
            add_key(record.key)
            add_value(record.value)
            add_headers(record.headers)
    return lists


def arrow_job(parts: Callable[[], Iterator[Iterable[Any]]]) -> Job:
    """Decoding to lists, and from each an Arrow array, in the schema of this project's tables."""
    return Job(lambda: arrow_of(lists_of(parts())), lambda: arrow_rows(arrow_of(lists_of(parts()))))


def arrow_of(lists: Lists) -> pyarrow.Table:
    """A table from the columns that a peer decodes; what it does not decode is filled in as cheaply as can be."""
    import pyarrow as pa  # noqa: PLC0415 - an extra: only these cases need it

    schema, count = arrow_schema(), len(lists[0])
    offsets, stamps, keys, values, headers = lists
    arrays = [
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(stamps, pa.timestamp("ms", tz="UTC")).cast(schema.field("timestamp").type),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, schema.field("headers").type),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    table: pyarrow.Table = pa.Table.from_arrays(arrays, schema=schema)
    return table


def arrow_rows(table: pyarrow.Table) -> bytes:
    """The rows of a table, in the form that compares."""
    import pyarrow as pa  # noqa: PLC0415 - an extra: only these cases need it

    if table.schema != arrow_schema():
        return f"another schema: {table.schema}".encode()
    stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [table.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
    return canonical(
        (
            offset,
            -1 if stamp is None else stamp // 1000,
            key,
            value,
            tuple((header["key"], header["value"]) for header in headers),
        )
        for stamp, (offset, key, value, headers) in zip(stamps, zip(*columns, strict=True), strict=True)
    )


def objects_job(parts: Callable[[], Iterator[Iterable[Any]]], row_of: Callable[[Any], Row]) -> Job:
    """Making the objects, whose fields are then all there."""
    return Job(lambda: consume(parts()), lambda: _rows(parts(), row_of))


def _rows(parts: Iterable[Iterable[Any]], row_of: Callable[[Any], Row]) -> bytes:
    return canonical(map(row_of, chain.from_iterable(parts)))


def encode_job(encode: Callable[[Sequence[Any]], bytes | bytearray], batches: Sequence[Sequence[Any]]) -> Job:
    """One batch from each sequence of inputs."""
    return Job(lambda: [encode(batch) for batch in batches], lambda: b"".join(map(encode, batches)))
