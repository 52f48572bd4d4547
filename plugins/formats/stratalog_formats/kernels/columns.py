"""Builder of record columns over one arena, in pure Python."""

from __future__ import annotations

from array import array

from stratalog import RecordColumns
from stratalog.spi import Buffer, Fields


class ColumnBuilder:
    """Columns that grow record by record. The arrays are public, because fast loops append to them directly.

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
        """Return the columns of the requested ``fields``. Columns of other fields are empty."""
        positions, headers, columns = self.positions, self.headers, dict[str, memoryview]()
        if Fields.OFFSET in fields:
            columns |= {"offset": memoryview(self.offsets), "leader_epoch": memoryview(self.epochs)}
        if Fields.TIMESTAMP in fields:
            columns |= {"timestamp_ms": memoryview(self.timestamps), "timestamp_type": memoryview(self.types)}
        if Fields.KEY in fields:
            columns |= {"key_position": memoryview(positions[0::6]), "key_size": memoryview(positions[1::6])}
        if Fields.VALUE in fields:
            columns |= {"value_position": memoryview(positions[2::6]), "value_size": memoryview(positions[3::6])}
        if Fields.HEADERS in fields:
            columns |= {"header_first": memoryview(positions[4::6]), "header_count": memoryview(positions[5::6])}
            columns |= {"header_key_position": memoryview(headers[0::4]), "header_key_size": memoryview(headers[1::4])}
            columns |= {
                "header_value_position": memoryview(headers[2::4]),
                "header_value_size": memoryview(headers[3::4]),
            }
        return RecordColumns(arena, len(self.offsets), **columns)
