"""Collecting records into columns over one arena."""

from __future__ import annotations

from array import array

from stratalog.spi import Buffer, Fields, RecordColumns, int64_column


class ColumnBuilder:
    """Columns that grow record by record. The lists are public: hot loops append to them directly.

    ``positions`` holds six numbers a record: position and size of the key, of the value, and first and count of its
    headers; ``headers`` four numbers a header: position and size of its key and of its value. Sizes are -1 for null.
    """

    __slots__ = ("epochs", "headers", "offsets", "positions", "timestamps", "types")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.timestamps = array("q")
        self.types = array("q")
        self.epochs = array("q")
        self.positions = array("q")
        self.headers = array("q")

    def build(self, arena: Buffer, fields: Fields) -> RecordColumns:
        """The columns that were asked for."""
        count = len(self.offsets)
        empty = int64_column()
        six = memoryview(self.positions)
        four = memoryview(self.headers)
        with_key, with_value = Fields.KEY in fields, Fields.VALUE in fields
        with_headers, with_time = Fields.HEADERS in fields, Fields.TIMESTAMP in fields
        return RecordColumns(
            arena=arena,
            count=count,
            offset=memoryview(self.offsets) if Fields.OFFSET in fields else empty,
            timestamp_ms=memoryview(self.timestamps) if with_time else empty,
            timestamp_type=memoryview(self.types) if with_time else empty,
            leader_epoch=memoryview(self.epochs) if Fields.OFFSET in fields else empty,
            key_position=six[0::6] if with_key else empty,
            key_size=six[1::6] if with_key else empty,
            value_position=six[2::6] if with_value else empty,
            value_size=six[3::6] if with_value else empty,
            header_first=six[4::6] if with_headers else empty,
            header_count=six[5::6] if with_headers else empty,
            header_key_position=four[0::4] if with_headers else empty,
            header_key_size=four[1::4] if with_headers else empty,
            header_value_position=four[2::4] if with_headers else empty,
            header_value_size=four[3::4] if with_headers else empty,
        )
