"""Record formats: the conversion of records to batches of bytes and back.

Implementations have no state and are thread-safe. The core makes a call for one or more batches, never for one record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from stratalog.model.arrow import arrow_batches, arrow_fields
from stratalog.model.batches import NO_EPOCH, NO_PRODUCER, NO_TIMESTAMP, BatchTable, Buffer, TimestampType
from stratalog.model.prepared import PreparedBatches, Rules
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.spi.codecs import Codec

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The header fields of a new batch.

    ``append_time_ms`` is used only if ``timestamp_type`` is LOG_APPEND_TIME. Readers then see ``append_time_ms`` as the
    timestamp of every record.
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
    """A record filter's decision about a record, in one byte. Verdicts are not stored after the compaction round.

    DROP_AT_HORIZON is for tombstones: compaction keeps the record until its delete horizon, and then drops it.
    """

    KEEP = 0
    DROP = 1
    DROP_AT_HORIZON = 2


class RecordFormat(ABC):
    """The format of the batches with one magic value. Positions are in bytes, relative to the start of ``data``.

    Attributes:
        magic: the value of byte 16 of each entry. An entry is a batch of magic 2, or a message of magic 0 or 1.
    """

    magic: ClassVar[int]

    @abstractmethod
    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        """Return the batches of ``data`` in [start, end), until an entry is partial, bad, or has another magic.

        Bytes outside of the range are not read. If ``check_crc`` is True, the scan stops before a batch whose CRC does
        not match. If it is False, CRCs are not checked.

        Bad bytes never raise an error. ``table.stop`` is the reason why the scan stopped. ``table.stop_position`` is
        the position where it stopped. ``table.reason`` describes the damage at this position; it is "" if the bytes are
        not damaged. If 1 to 16 bytes remain, they are a partial entry. Batches follow each other without a gap, from
        ``start`` to ``table.stop_position``; if they do not, the engine raises PluginError.
        """

    @abstractmethod
    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        """Yield the records of ``batches`` in order, one RecordColumns for each arena.

        An arena is the buffer to which a RecordColumns refers. It holds consecutive uncompressed batches, or the
        decompressed records of one or more batches. Columns of fields that are not requested are empty. ``data`` is not
        changed. Control batches are decoded like data batches; a caller that does not want them must remove them from
        ``batches``.

        Args:
            data: the bytes that were scanned.
            batches: rows of a scan of ``data``.
            fields: the fields to fill.
            limit_bytes: the largest allowed size of a decompressed batch.

        Raises:
            CorruptBatchError: records do not fit their batch. The error has the position of the batch, and no file.
            DecompressedSizeError: a decompressed batch exceeds ``limit_bytes``.
            UnsupportedCompressionError: no codec has the batch's codec id, or the codec cannot be opened.
            PluginClashError: several codecs have the batch's codec id.
        """

    def decode_arrow(
        self,
        data: Buffer,
        batches: BatchTable,
        *,
        partition: int,
        limit_bytes: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of ``batches`` as Arrow batches with the schema ``arrow_schema(columns)``.

        The default implementation uses ``decode``; a format can override it with a faster one. The results do not refer
        to ``data``: its owner may reuse the memory before it requests the next result. A format need not read the
        records if the batch headers contain the values of all requested columns. Then it does not detect a header that
        contradicts its records.

        Args:
            data: the bytes that were scanned.
            batches: rows of a scan of ``data``.
            partition: the value of the column ``partition``.
            limit_bytes: the largest allowed size of a decompressed batch.
            columns: names of the columns, in the order of the results; None means all columns.

        Raises:
            ConfigError: ``columns`` contains an unknown name or a name twice, or is one string.
            PluginImportError: pyarrow is not installed; the text names the extra to install.
            The errors of ``decode``.
        """
        for chunk in self.decode(data, batches, fields=arrow_fields(columns), limit_bytes=limit_bytes):
            yield from arrow_batches(chunk, partition, columns)

    def select(
        self,
        data: Buffer,
        *,
        base_offset: int,
        offset: int,
        max_bytes: int,
        bound: int,
        indexed_offset: int | None,
        check_crc: bool = False,
        beyond_bytes: int = 0,
        since_ms: int | None = None,
        indexed_ms: int | None = None,
    ) -> tuple[int, int, int] | None:
        """Return the positions of the batches that a fetch returns, without a table of all batches in ``data``.

        A search by timestamp calls this method with ``since_ms``.

        The format checks the sizes and offsets in the headers of batches. A fetch from local disk sets ``check_crc`` to
        False: like Kafka, stratalog does not check CRCs there.

        Args:
            data: batches of one segment; the last batch can be incomplete. If an index entry is wrong, ``data`` can
                begin inside a batch and hold any bytes.
            base_offset: base offset of the segment. Offsets ascend and are in [base_offset, base_offset + 2**31).
            offset: the first returned batch is the first batch whose last offset is at or above this offset.
            max_bytes: size limit of the returned batches. The first batch is returned even if it is larger.
            bound: a batch whose last offset is at or above this offset is not returned.
            indexed_offset: last offset of one of these batches, from the index entry that gave the position of
                ``data``; None without an index entry.
            check_crc: True to check the CRC of all batches up to the last returned one. The first batch with a wrong
                CRC ends the usable data.
            beyond_bytes: number of bytes in the segment after ``data``. The last batch may extend into them if its
                header is in ``data`` and CRCs are not checked. A caller that only needs positions does not have to read
                them.
            since_ms: the largest timestamp of the first returned batch must be at or above this timestamp. None sets no
                such condition.
            indexed_ms: largest timestamp of the batch with the last offset ``indexed_offset``, from an index; the
                format compares it with the batch. If None, the timestamp is not compared.

        Returns:
            Start position (bytes), exclusive end position and last offset of the batches. If the last offset of the
            first batch is at or above ``bound``, both positions are equal, and the last offset is not used. The end can
            be above the size of ``data`` (``beyond_bytes``). The result is None if the caller must use ``scan``.
            This is the case if ``data`` has no batch with which the result could begin, if that batch is not complete,
            if bytes before it are damaged, or if an entry has another magic. It is the case, too, if no batch has
            the last offset ``indexed_offset``, or if the largest timestamp of this batch is not ``indexed_ms``. The
            default implementation returns None.
        """
        del data, base_offset, offset, max_bytes, bound, indexed_offset, check_crc, beyond_bytes, since_ms, indexed_ms
        return None

    def prepare_records(self, records: Sequence[Record], rules: Rules, now_ms: int) -> PreparedBatches | None:
        """Return all records as one uncompressed batch with CreateTime and no producer, with offsets from 0 on.

        ``encode`` returns the same bytes. One call encodes the records and compares them with the rules.

        Args:
            records: any number of records; their offsets are ignored.
            rules: rules of the topic.
            now_ms: the current time, and the timestamp for records without one.

        Returns:
            None if there are no records, if they do not fit one batch, if one of them may break a rule, or after any
            error. The log then encodes and checks the records with other methods. The default implementation returns
            None.
        """
        del records, rules, now_ms
        return None

    def prepare_batches(self, data: Buffer, rules: Rules, now_ms: int) -> PreparedBatches | None:
        """Return a copy of ``data`` if a leader can write its batches without decoding them; otherwise None.

        One call scans the batches, checks their CRCs, and compares their records with the rules. Batches can be written
        without decoding if they are complete and uncompressed, have CreateTime, and have no control records and no
        delete horizon. The records must fill their batch exactly, with offsets that ascend by one. A batch with a
        producer id must have a sequence number. If ``rules.keeps_times``, each header must have the largest timestamp
        of its records.

        Args:
            data: batches that a client sent.
            rules: rules of the topic.
            now_ms: the current time.

        Returns:
            None if ``data`` is empty, if the batches must be decoded, or if a record may break a rule. The log then
            decodes the batches. The default implementation returns None.
        """
        del data, rules, now_ms
        return None

    @abstractmethod
    def encode(
        self,
        records: Sequence[Record] | RecordColumns,
        header: BatchHeader,
        codec: Codec | None,
        level: int | None,
        *,
        keep_offsets: bool = False,
    ) -> bytearray:
        """Return one batch with the offsets ``header.base_offset``, +1, +2, ...

        In V0 and V1, each uncompressed record becomes one entry.

        Args:
            records: the records, as objects or as columns with all fields. Timestamps are written unchanged; the caller
                has already replaced "no timestamp". Timestamp types and leader epochs are ignored. Offsets are ignored
                unless ``keep_offsets`` is True.
            header: the other fields of the batch.
            codec: None writes an uncompressed batch.
            level: compression level; None is the codec's default.
            keep_offsets: True to keep the gaps between the offsets of columns. The first record gets
                ``header.base_offset``.

        Raises:
            InvalidRecordError: there are no records; or the format cannot hold a record, and the error has the index of
                the record; or, with ``keep_offsets``, the offsets do not ascend, or have gaps that the format cannot
                keep. Formats cannot hold a timestamp below -1, or a header name that cannot be encoded as UTF-8. V0 and
                V1 cannot hold headers.
            UnsupportedForMessageFormatError: the format cannot hold a field of ``header``, such as a producer id in V0
                and V1.
            UnsupportedCompressionError: the format does not support the codec, such as zstd in V0 and V1.
            ConfigError: ``level`` is not a level of the codec.
        """

    @abstractmethod
    def assign(self, batches: PreparedBatches, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> None:
        """Set the offsets and the leader epoch of batches in place, in ``batches.data`` and in ``batches.table``.

        Gaps between the offsets inside a batch stay. The CRC of a batch is computed again only if a field that the CRC
        covers changes. The call may be repeated with other offsets.

        Args:
            batches: changed in place.
            base_offset: offset of the first record.
            leader_epoch: leader epoch of all batches.
            append_time_ms: largest timestamp (ms) that each batch gets, with the timestamp type LogAppendTime. If None,
                each batch gets the timestamp type and the largest timestamp of its row in ``batches.table``, which the
                leader may have corrected. V0 has no timestamps and ignores this argument.

        Raises:
            CorruptBatchError, DecompressedSizeError, UnsupportedCompressionError: V0 and V1 may decompress a batch to
                count its offsets, and then raise the errors of ``decode``.
        """

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
        """Return the batches without their dropped records, for compaction. Headers are rewritten as in Kafka.

        A format whose batches can be compacted must override this method; the default raises NotImplementedError. The
        concatenation of the results is the retained bytes, in order. A kept record has the same offset, timestamp and
        contents as before, and a batch has the same timestamp type. A later compaction round can rewrite the result
        again. A batch that loses no record is returned unchanged. A batch that loses all records is left out; if
        ``retain_empty`` is True for it, only its header is returned.

        Source: apache/kafka MemoryRecords.filterTo.

        Args:
            data: the bytes that were scanned.
            batches: rows of a scan of ``data``.
            verdicts: for each batch, one ``Verdict`` byte per record.
            horizon_ms: the delete horizon for batches that have none yet and keep a record with DROP_AT_HORIZON; None
                sets no delete horizon.
            retain_empty: for each batch, True to keep its header if all its records are dropped. It is True for the
                last batch of a producer or of the range. None means False for all batches.
            limit_bytes: the largest allowed size of a decompressed batch.

        Raises:
            CorruptBatchError: records do not fit their batch. The error has the position of the batch, and no file.
            DecompressedSizeError: a decompressed batch exceeds ``limit_bytes``.
            UnsupportedCompressionError: no codec has the batch's codec id, or the codec cannot be opened.
            PluginClashError: several codecs have the batch's codec id.
            InvalidRecordError: the numbers of verdicts and records differ, or ``retain_empty`` is True for a batch that
                loses all records, and the format has no empty batches.
        """
        raise NotImplementedError(f"{type(self).__name__} does not rewrite batches")
