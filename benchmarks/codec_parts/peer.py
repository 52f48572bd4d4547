"""A peer: a library that supports some of the operations in a Python process."""

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
        name: name of the side.
        distribution: name of the library on the package index.
    """

    name: str
    distribution: str

    @abstractmethod
    def makers(self) -> dict[Operation, Maker]:
        """Return a function that makes the job, for each operation that the library supports."""

    def cannot(self, codec: str) -> str | None:
        """Return the reason if the library cannot decode and encode this codec here, otherwise None."""
        del codec
        return None


def consume(parts: Iterable[Iterable[object]]) -> None:
    """Create and drop every object. The loop runs in C, so that its cost is the same small one for all peers."""
    for part in parts:
        deque(part, maxlen=0)


def lists_job(parts: Callable[[], Iterator[Iterable[Any]]]) -> Job:
    """Return the job that decodes to five lists: offsets, timestamps, keys, values, headers."""
    return Job(lambda: lists_of(parts()), lambda: canonical(zip(*lists_of(parts()), strict=True)))


def gathered_job(once: Job) -> Job:
    """Return the job that does ``once`` for many buffers and keeps all results until the end.

    Kept objects make the garbage collector slower, as in a program that holds its data.
    """
    turns = range(GATHERED_TIMES)
    return Job(lambda: [once.call() for _ in turns], lambda: b"".join(once.outcome() for _ in turns))


def lists_of(parts: Iterable[Iterable[Any]]) -> Lists:
    """Return columns of the fields of record objects. This is the fastest of five ways to write the loop."""
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
    """Return the job that decodes to lists, and makes an Arrow table with stratalog's schema of them."""
    return Job(lambda: arrow_of(lists_of(parts())), lambda: arrow_rows(arrow_of(lists_of(parts()))))


def arrow_of(lists: Lists) -> pyarrow.Table:
    """Return a table of the columns that a peer decodes. Constants fill the columns that it does not decode."""
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
    """Return the rows of a table in their canonical form."""
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
    """Return the job that makes all record objects, with all their fields."""
    return Job(lambda: consume(parts()), lambda: _rows(parts(), row_of))


def _rows(parts: Iterable[Iterable[Any]], row_of: Callable[[Any], Row]) -> bytes:
    return canonical(map(row_of, chain.from_iterable(parts)))


def encode_job(encode: Callable[[Sequence[Any]], bytes | bytearray], batches: Sequence[Sequence[Any]]) -> Job:
    """Return the job that encodes one batch from each sequence of inputs."""
    return Job(lambda: [encode(batch) for batch in batches], lambda: b"".join(map(encode, batches)))
