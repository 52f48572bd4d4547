"""Builder of record columns over one arena, in pure Python."""

from __future__ import annotations

from array import array
from typing import Final

from stratalog import RecordColumns
from stratalog.spi import Buffer, Fields

_NO_LONGS: Final = memoryview(array("q"))
_NO_INTS: Final = memoryview(array("i"))


class ColumnBuilder:
    """Columns that grow record by record. The arrays are public, because fast loops append to the arrays directly.

    ``positions`` has six numbers for each record: position and size of the key, position and size of the value, index
    of the first header, and number of headers. ``headers`` has four numbers for each header: position and size of the
    header's name, position and size of the header's value. The size of null is -1.
    """

    __slots__ = ("epochs", "headers", "offsets", "positions", "timestamps", "types")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.timestamps = array("q")
        self.types = array("i")
        self.epochs = array("i")
        self.positions = array("i")
        self.headers = array("i")

    def build(self, arena: Buffer, fields: Fields) -> RecordColumns:
        """Return the columns of the requested fields; the columns of other fields are empty."""
        six, four = self.positions, self.headers
        with_key, with_value = Fields.KEY in fields, Fields.VALUE in fields
        with_headers, with_time = Fields.HEADERS in fields, Fields.TIMESTAMP in fields
        return RecordColumns(
            arena=arena,
            count=len(self.offsets),
            offset=memoryview(self.offsets) if Fields.OFFSET in fields else _NO_LONGS,
            timestamp_ms=memoryview(self.timestamps) if with_time else _NO_LONGS,
            timestamp_type=memoryview(self.types) if with_time else _NO_INTS,
            leader_epoch=memoryview(self.epochs) if Fields.OFFSET in fields else _NO_INTS,
            key_position=memoryview(six[0::6]) if with_key else _NO_INTS,
            key_size=memoryview(six[1::6]) if with_key else _NO_INTS,
            value_position=memoryview(six[2::6]) if with_value else _NO_INTS,
            value_size=memoryview(six[3::6]) if with_value else _NO_INTS,
            header_first=memoryview(six[4::6]) if with_headers else _NO_INTS,
            header_count=memoryview(six[5::6]) if with_headers else _NO_INTS,
            header_key_position=memoryview(four[0::4]) if with_headers else _NO_INTS,
            header_key_size=memoryview(four[1::4]) if with_headers else _NO_INTS,
            header_value_position=memoryview(four[2::4]) if with_headers else _NO_INTS,
            header_value_size=memoryview(four[3::4]) if with_headers else _NO_INTS,
        )
