"""Builder of record columns over one arena, in pure Python."""

from __future__ import annotations

from array import array

from stratalog import RecordColumns
from stratalog.spi import Buffer, Fields


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
        six, four, chosen = self.positions, self.headers, dict[str, memoryview]()
        if Fields.OFFSET in fields:
            chosen |= {"offset": memoryview(self.offsets), "leader_epoch": memoryview(self.epochs)}
        if Fields.TIMESTAMP in fields:
            chosen |= {"timestamp_ms": memoryview(self.timestamps), "timestamp_type": memoryview(self.types)}
        if Fields.KEY in fields:
            chosen |= {"key_position": memoryview(six[0::6]), "key_size": memoryview(six[1::6])}
        if Fields.VALUE in fields:
            chosen |= {"value_position": memoryview(six[2::6]), "value_size": memoryview(six[3::6])}
        if Fields.HEADERS in fields:
            chosen |= {"header_first": memoryview(six[4::6]), "header_count": memoryview(six[5::6])}
            chosen |= {"header_key_position": memoryview(four[0::4]), "header_key_size": memoryview(four[1::4])}
            chosen |= {"header_value_position": memoryview(four[2::4]), "header_value_size": memoryview(four[3::4])}
        return RecordColumns(arena, len(self.offsets), **chosen)
