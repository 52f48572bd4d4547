"""Errors of records that are refused, and of offsets that are not there."""

from __future__ import annotations

from stratalog.errors.base import StorageError


class RecordError(StorageError):
    """The records handed in are refused; nothing was written."""

    kafka_code = 87


class InvalidRecordError(RecordError):
    """Contents break a rule. ``record_errors`` holds (index, message) where single records do.

    The index counts from the first record handed in, or from the first one of the batch whose position the text names.
    """

    def __init__(self, reason: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(reason, record_errors)
        self.record_errors = record_errors

    def _where(self) -> str:
        if not self.record_errors:
            return ""
        index, message = self.record_errors[0]
        return f" records={len(self.record_errors)} first_index={index} first={message!r}"


class InvalidTimestampError(InvalidRecordError):
    """A timestamp is outside ``message.timestamp.before.max.ms`` / ``after.max.ms``. Correct the clock."""

    kafka_code = 32


class UnsupportedForMessageFormatError(InvalidRecordError):
    """The topic's ``record.version`` has no place for producer ids and transactions. Set it to 2, or write without."""

    kafka_code = 43


class RecordTooLargeError(RecordError):
    """A batch is above ``max.message.bytes``. Send smaller records or raise the setting."""

    kafka_code = 10


class RecordBatchTooLargeError(RecordError):
    """One append is above ``segment.bytes``. Append less at once or raise the setting."""

    kafka_code = 18


class OutOfOrderSequenceError(RecordError):
    """An idempotent producer skipped or repeated a sequence. The producer must start a new epoch."""

    kafka_code = 45


class InvalidProducerEpochError(RecordError):
    """A newer instance of this producer has written already. Stop this one."""

    kafka_code = 47


class ProducerFencedError(InvalidProducerEpochError):
    """A newer producer has this transactional id, or the transaction took too long. Close this one."""

    kafka_code = 90


class InvalidTxnStateError(RecordError):
    """A transactional rule is broken: a plain batch inside an open transaction, say. Abort it first."""

    kafka_code = 48


class TransactionCoordinatorFencedError(RecordError):
    """A newer coordinator has ended a transaction of this producer already. Stop this one."""

    kafka_code = 52


class OffsetsExhaustedError(RecordError):
    """The log would pass the last offset that there is, 2^63 - 2. Go on in another topic."""

    kafka_code = -1


class TransactionAbortedError(RecordError):
    """A transaction misses a record, or was aborted before this record was sent. Abort it and begin again."""

    kafka_code = 120


class UnsupportedCompressionError(RecordError):
    """The codec does not go with this record format or is not installed. Choose another ``compression.type``."""

    kafka_code = 76


class OffsetsOutOfOrderError(RecordError):
    """Offsets do not ascend in what a follower was given. Fetch it again: the leader, or the way from it, is at fault."""

    kafka_code = -1


class UnexpectedAppendOffsetError(RecordError):
    """A follower was given a batch that begins below its log end. Fetch from the log end, or truncate first."""

    kafka_code = -1

    def __init__(self, log: str, first_offset: int, last_offset: int, log_end: int) -> None:
        super().__init__(log, first_offset, last_offset, log_end)
        self.reason = "a batch begins below the log end"
        self.log, self.first_offset, self.last_offset, self.log_end = log, first_offset, last_offset, log_end

    def _where(self) -> str:
        offsets = f"first_offset={self.first_offset} last_offset={self.last_offset}"
        return f" log={self.log} {offsets} log_end={self.log_end}"


class OffsetOutOfRangeError(StorageError):
    """The offset is below the log start or above the log end. Ask again inside [log_start, log_end]."""

    kafka_code = 1

    def __init__(self, log: str, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(log, offset, log_start, log_end)
        self.reason = "offset out of range"
        self.log, self.offset, self.log_start, self.log_end = log, offset, log_start, log_end

    def _where(self) -> str:
        return f" log={self.log} offset={self.offset} log_start={self.log_start} log_end={self.log_end}"


class NoOffsetError(StorageError):
    """There is no offset to begin at: none was committed, and ``auto_offset_reset`` is ``none``. Seek first."""
