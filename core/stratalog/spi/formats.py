"""Record formats: what turns records into batches of bytes, and back.

Implementations are pure and thread-safe, and work in bulk: one call a fetch or append, never one a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from stratalog.errors import InvalidRecordError
from stratalog.model.arrow import arrow_batches
from stratalog.model.batches import (
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchTable,
    Buffer,
    RecordBatch,
    TimestampType,
)
from stratalog.model.offsets import TimestampOffset
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.spi.codecs import Codec

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """What a new batch's header says beside its records.

    ``append_time_ms`` is used when ``timestamp_type`` is LOG_APPEND_TIME: every record then reads as this time.
    """

    base_offset: int = 0
    leader_epoch: int = NO_EPOCH
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    append_time_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False


class Verdict(IntEnum):
    """What cleaning does with a record. One byte each; persistent within a job only."""

    KEEP = 0
    DROP = 1
    DROP_AT_HORIZON = 2


class BatchSurvey(NamedTuple):
    """What is true of all records of some batches.

    Attributes:
        attributes: the bits that any batch has.
        least_ms: the smallest timestamp.
        largest_ms: the largest one.
        has_null_key: whether any key is null.
        is_stamped: whether each header tells the largest timestamp of its records.
    """

    attributes: int
    least_ms: int
    largest_ms: int
    has_null_key: bool
    is_stamped: bool


class PlainBatch(NamedTuple):
    """One whole batch of data that a leader writes as it is, but for its offset and leader epoch.

    Its records have the offsets 0, 1, 2, ... in it, and its header says CreateTime, no producer and no codec.

    Attributes:
        data: its bytes; whoever holds the value may change them.
        record_count: at least 1.
        least_ms: the smallest timestamp.
        largest_ms: the largest one as the header tells it, -1 if no record has one.
        has_null_key: whether any key is null.
    """

    data: bytearray
    record_count: int
    least_ms: int
    largest_ms: int
    has_null_key: bool


class RecordFormat(ABC):
    """One magic. Positions are bytes into ``data``.

    Attributes:
        magic: byte 16 of each entry.
    """

    magic: ClassVar[int]

    @abstractmethod
    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        """The batches in [start, end) until another magic, a partial entry or a bad one. Never raises on bytes.

        ``table.stop`` says why it ended and ``table.stop_position`` where; ``table.reason`` what is wrong there.
        Fewer than 17 bytes left are a partial entry.
        """

    @abstractmethod
    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        """The records of ``batches``, one RecordColumns an arena (a run of raw batches, or one decompressed batch).

        Control batches are decoded like others; the caller leaves them out by their attributes. Order is kept.

        Args:
            data: what was scanned.
            batches: rows of a scan of ``data``.
            fields: what to fill.
            limit_bytes: the largest decompressed batch.

        Raises:
            CorruptBatchError: records do not fit their batch; position is the batch's, file is "".
            DecompressedSizeError: a batch decompresses past ``limit_bytes``.
            UnsupportedCompressionError: no codec with the batch's id.
        """

    def decode_arrow(
        self, data: Buffer, batches: BatchTable, *, partition: int, limit_bytes: int
    ) -> Iterator[pyarrow.RecordBatch]:
        """The records of ``batches`` with all fields, in ``arrow_schema()``; faster where a format overrides it.

        What is yielded refers to no byte of ``data``, which its owner may use again before the next step.

        Args:
            data: as for ``decode``.
            batches: the same.
            partition: what the column of this name says.
            limit_bytes: as for ``decode``.

        Raises:
            PluginImportError: pyarrow is not installed; the text names the extra.
            As ``decode``, of the same bytes.
        """
        for columns in self.decode(data, batches, limit_bytes=limit_bytes):
            yield from arrow_batches(columns, partition)

    def survey(self, data: Buffer, batches: BatchTable) -> BatchSurvey | None:
        """What a leader has to know of batches that stay as they are, without decoding them.

        Args:
            data: what was scanned.
            batches: rows of a scan of ``data``.

        Returns:
            None where a closer look is needed: something is wrong, compressed, or not as new batches of this magic are;
            the default. Else the batches are uncompressed, their records fill them, and offsets ascend by one.
        """
        del data, batches
        return None

    def pick(
        self,
        data: Buffer,
        *,
        base_offset: int,
        offset: int,
        max_bytes: int,
        bound: int,
        told: int | None,
        check_crc: bool = False,
        beyond_bytes: int = 0,
    ) -> tuple[int, int, int] | None:
        """What a fetch returns of batches that were read to look for an offset, without a table of all of them.

        Framing and offsets are looked at. CRCs of a log's own disk are not, as Kafka checks none when it reads there.

        Args:
            data: whole batches from its first byte on, then perhaps a part of one. It may be anything: indexes may lie.
            base_offset: of the segment: every offset lies in [base_offset, base_offset + 2**31), and they ascend.
            offset: the first batch to return is the first that ends at or above it.
            max_bytes: of what is returned, but one batch always is.
            bound: no batch that ends at or above it is returned.
            told: the last offset of one of these batches, the first one's or a later one's, by the index entry that led
                here; None if it was none.
            check_crc: compare all batches up to the last that is returned with their CRC. The first that does not match
                ends what there is to pick from.
            beyond_bytes: of the segment behind ``data``. A batch whose header is in ``data`` may reach into them, unless CRCs
                are compared: who only asks where batches are need not read them.

        Returns:
            Where the batches begin and end, from the start of ``data``, and their last offset; an empty range if the first one reaches
            the bound. None where a scan has to look closer: ``told`` is not true, the first batch is not there whole,
            what comes before it is damaged, or there is an entry of another magic; the default.
        """
        del data, base_offset, offset, max_bytes, bound, told, check_crc, beyond_bytes
        return None

    def plain_batch(self, data: Buffer) -> PlainBatch | None:
        """``data``, copied, if all of it is one batch that needs no look into its records: most appends are.

        Scanned, checked by its CRC, surveyed, in one call.

        Returns:
            None where it takes more than one call to know, or anything is wrong; the default.
        """
        del data
        return None

    def encode_plain(
        self, records: Sequence[Record], now_ms: int, *, limit_bytes: int, overhead_bytes: int
    ) -> PlainBatch | None:
        """The batch of ``encode`` with a plain header, if all records fit one.

        Args:
            records: any number of them.
            now_ms: the timestamp of records that have none.
            limit_bytes: of keys, values and headers, with ``overhead_bytes``; a single record may have more.
            overhead_bytes: counted beside the contents of each record.

        Returns:
            None where they do not fit, or anything is wrong with them; the default.
        """
        del records, now_ms, limit_bytes, overhead_bytes
        return None

    def place(self, data: bytearray, base_offset: int, leader_epoch: int) -> None:
        """Give the one batch that ``data`` is its offset and leader epoch, as ``assign`` does."""
        self.assign(data, self.scan(data, 0, len(data), check_crc=False), base_offset, leader_epoch, None)

    def first_late(
        self, data: Buffer, batches: BatchTable, row: int, *, timestamp_ms: int, min_offset: int, limit_bytes: int
    ) -> TimestampOffset | None:
        """The first record of one batch with a timestamp and an offset at or above those given; None if none has.

        Overridden where that is found without making columns of the batch.

        Args:
            data: what was scanned.
            batches: rows of a scan of ``data``.
            row: which of them.
            timestamp_ms: the least timestamp.
            min_offset: the least offset.
            limit_bytes: as for ``decode``.

        Raises:
            As ``decode``; what comes after the record that is found may not be looked at.
        """
        fields = Fields.OFFSET | Fields.TIMESTAMP
        for columns in self.decode(data, batches.take(row, row + 1), fields=fields, limit_bytes=limit_bytes):
            for offset, stamp in zip(columns.offset, columns.timestamp_ms, strict=True):
                if stamp >= timestamp_ms and offset >= min_offset:
                    return TimestampOffset(stamp, offset)
        return None

    @abstractmethod
    def encode(
        self, records: Sequence[Record], header: BatchHeader, codec: Codec | None, level: int | None
    ) -> bytearray:
        """One batch with the offsets ``header.base_offset``, +1, +2, ... (V0, V1 uncompressed: one entry a record).

        Timestamps are taken as they are; the caller has replaced "no timestamp". ``codec`` None is uncompressed.

        Raises:
            InvalidRecordError: no records, or a record that this format cannot hold (headers in V0 and V1).
        """

    def encode_columns(
        self,
        columns: RecordColumns,
        header: BatchHeader,
        codec: Codec | None,
        level: int | None,
        *,
        keep_offsets: bool = False,
    ) -> bytearray:
        """As ``encode``, from columns with all fields; faster where a format overrides it.

        Args:
            columns: what to write; timestamp types, leader epochs and, unless ``keep_offsets``, offsets are ignored.
            header: as for ``encode``.
            codec: None is uncompressed.
            level: None is the codec's default.
            keep_offsets: records keep their distances, ``header.base_offset`` being the first one's offset. Formats
                that do not say otherwise can only do so if there are no gaps.

        Raises:
            InvalidRecordError: no records, or a record that this format cannot hold; offsets that do not ascend, or
                leave gaps that it cannot keep.
        """
        if keep_offsets and any(
            offset != expected
            for expected, offset in enumerate(columns.offset, columns.offset[0] if columns.count else 0)
        ):
            raise InvalidRecordError(f"magic {self.magic} cannot keep gaps between offsets")
        return self.encode(columns.to_records(), header, codec, level)

    @abstractmethod
    def assign(
        self, data: bytearray, batches: BatchTable, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> BatchTable:
        """Give batches of ``data`` their offsets in place, the first record getting ``base_offset``.

        ``append_time_ms`` makes them LogAppendTime; None leaves timestamps. A CRC is computed again only if a field
        that it covers changes.
        """

    def restamp(self, data: bytearray, batch: RecordBatch, max_timestamp_ms: int) -> bool:
        """Make a batch of ``data`` say CreateTime with this maximum (ms), in place; its records stay as they are.

        Returns False, with ``data`` as it was, if the format does not do that; the batch is then encoded again.
        """
        del data, batch, max_timestamp_ms
        return False

    def retain(
        self,
        data: Buffer,
        batches: BatchTable,
        verdicts: Sequence[Buffer],
        horizon_ms: int | None,
        *,
        retain_empty: Sequence[bool] | None = None,
        limit_bytes: int,
    ) -> Iterable[Buffer]:
        """Cleaning: the batches without dropped records, headers kept as Kafka keeps them (MemoryRecords.filterTo).

        Joined, the result is what stays, in order. A batch that loses nothing is returned as the bytes it was; one that
        loses everything is gone, or is its header alone where ``retain_empty`` says so.

        Args:
            data: what was scanned.
            batches: rows of a scan of ``data``.
            verdicts: for each batch one ``Verdict`` byte a record.
            horizon_ms: the delete horizon to set on batches that keep a record with DROP_AT_HORIZON and have none yet;
                None sets none.
            retain_empty: for each batch whether it stays without records: the last one of a producer, or of the range.
            limit_bytes: the largest decompressed batch.

        Raises:
            CorruptBatchError: records do not fit their batch; position is the batch's, file is "".
            DecompressedSizeError: a batch decompresses past ``limit_bytes``.
            InvalidRecordError: not as many verdicts as records, or an emptied batch of a format that has none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not rewrite batches")
