"""Errors of refused records, and of offsets that do not exist."""

from __future__ import annotations

from stratalog.errors.base import StorageError

__all__ = [
    "ConcurrentTransactionsError", "InvalidProducerEpochError", "InvalidProducerIdMappingError", "InvalidRecordError",
    "InvalidTimestampError", "InvalidTxnStateError", "NoOffsetError", "OffsetOutOfRangeError", "OffsetsExhaustedError",
    "OffsetsOutOfOrderError", "OutOfOrderSequenceError", "ProducerFencedError", "RecordBatchTooLargeError",
    "RecordError", "RecordTooLargeError", "SerializationError", "TransactionAbortedError",
    "TransactionCoordinatorFencedError", "UnexpectedAppendOffsetError", "UnsupportedCompressionError",
    "UnsupportedForMessageFormatError",
]  # fmt: skip


class RecordError(StorageError, kafka_code=87):
    """The appended records are refused; nothing was written."""


class InvalidRecordError(RecordError):
    """Records break a rule. ``record_errors`` has (index, message) of each wrong record; () if these are unknown.

    Index 0 is the first appended record. If the text names the position of a batch, index 0 is the first record of
    this batch.
    """

    def __init__(self, reason: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(reason, record_errors)
        self.record_errors = record_errors

    def _where(self) -> str:
        if not self.record_errors:
            return ""
        index, message = self.record_errors[0]
        return f" records={len(self.record_errors)} first_index={index} first={message!r}"


class InvalidTimestampError(InvalidRecordError, kafka_code=32):
    """A timestamp is too far from the clock, or a client set the timestamp type LogAppendTime.

    ``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms`` limit the distance.
    """


class UnsupportedForMessageFormatError(InvalidRecordError, kafka_code=43):
    """The topic's ``record.version`` supports neither producer ids nor transactions. Set it to 2."""

    advice = "set record.version=2 for the topic, or send without producer ids and transactions"


class RecordTooLargeError(RecordError, kafka_code=10):
    """A batch is larger than ``max.message.bytes``. Send smaller records or increase the setting."""


class RecordBatchTooLargeError(RecordError, kafka_code=18):
    """One append is larger than ``segment.bytes``. Split the append or increase the setting."""


class OutOfOrderSequenceError(RecordError, kafka_code=45):
    """A sequence number does not follow the producer's last one, or is not 0 in a new epoch. Start a new epoch."""


class InvalidProducerEpochError(RecordError, kafka_code=47):
    """A newer epoch of this producer id has written to the log already. Stop the producer with the old epoch."""


class ProducerFencedError(InvalidProducerEpochError, kafka_code=90):
    """A newer producer has this transactional id, or the transaction timed out. Close this producer."""


class InvalidProducerIdMappingError(ProducerFencedError, kafka_code=49):
    """The transactional id is unknown, or has another producer id now. Create the producer again."""


class InvalidTxnStateError(RecordError, kafka_code=48):
    """The state of the producer's transaction does not allow the call or the batch."""


class ConcurrentTransactionsError(InvalidTxnStateError, kafka_code=51, retriable=True):
    """A transaction of the producer is still open or being ended. Retry the call."""


class TransactionCoordinatorFencedError(RecordError, kafka_code=52):
    """A coordinator with a newer epoch has written an end marker of this producer. Stop the older coordinator."""


class OffsetsExhaustedError(RecordError, kafka_code=-1):
    """The append would exceed the last possible offset, 2^63 - 2. Continue in another topic."""


class TransactionAbortedError(RecordError, kafka_code=120):
    """A record of the transaction was not appended. Abort the transaction if it is open, and begin a new one."""


class UnsupportedCompressionError(RecordError, kafka_code=76):
    """A codec is not installed, or the record format does not support it. Choose another ``compression.type``.

    If a batch needs the codec, ``position`` is the position of the batch: in ``file``, or in the appended or fetched
    bytes if ``file`` is "". It is -1 if it is not known.
    """

    def __init__(self, reason: str, file: str = "", position: int = -1) -> None:
        super().__init__(reason, file, position)
        self.file, self.position = file, position

    def _where(self) -> str:
        file = f" file={self.file}" if self.file else ""
        return file if self.position < 0 else f"{file} position={self.position}"


class OffsetsOutOfOrderError(RecordError, kafka_code=-1):
    """The offsets of a follower's append do not ascend, or the offsets of a bulk write overlap or leave a gap."""


class UnexpectedAppendOffsetError(RecordError, kafka_code=-1):
    """A batch appended to a follower begins below its log end offset. Fetch from the log end, or truncate first."""

    def __init__(self, log: str, first_offset: int, last_offset: int, log_end: int) -> None:
        super().__init__(log, first_offset, last_offset, log_end)
        self.reason = "a batch begins below the log end"
        self.log, self.first_offset, self.last_offset, self.log_end = log, first_offset, last_offset, log_end

    def _where(self) -> str:
        offsets = f"first_offset={self.first_offset} last_offset={self.last_offset}"
        return f" log={self.log} {offsets} log_end={self.log_end}"


class SerializationError(StorageError, kafka_code=-1):
    """A serializer or a deserializer of the caller failed. Correct the function or the data, or seek past the record.

    ``partition`` and ``offset`` are -1 if a serializer failed. Source: Kafka's SerializationException and
    RecordDeserializationException.
    """

    def __init__(self, reason: str, topic: str, partition: int = -1, offset: int = -1) -> None:
        super().__init__(reason, topic, partition, offset)
        self.topic, self.partition, self.offset = topic, partition, offset

    def _where(self) -> str:
        place = f" partition={self.partition} offset={self.offset}" if self.offset >= 0 else ""
        return f" topic={self.topic}{place}"


class OffsetOutOfRangeError(StorageError, kafka_code=1):
    """The offset is below the log start or above the log end. Use an offset in [log_start, log_end]."""

    advice = "use an offset from log_start to log_end"

    def __init__(self, log: str, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(log, offset, log_start, log_end)
        self.reason = "offset out of range"
        self.log, self.offset, self.log_start, self.log_end = log, offset, log_start, log_end

    def _where(self) -> str:
        return f" log={self.log} offset={self.offset} log_start={self.log_start} log_end={self.log_end}"


class NoOffsetError(StorageError):
    """The consumer group has no committed offset, and ``auto_offset_reset`` is ``none``. Seek first."""
