"""Delivery of a producer's batches: each batch is appended to its log, and each record's future gets its result.

Source: apache/kafka Sender, ProducerBatch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from stratalog.client.log_access import Logs
from stratalog.client.pending import PendingBatch, RecordMetadata
from stratalog.client.sequences import Sequences
from stratalog.errors import (
    ClosedError,
    DiskFullError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    RecordError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicError,
)
from stratalog.log.append.append import AppendResult
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record
from stratalog.segment.components import Components
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader

MAGIC: Final = 2
RETRY_BACKOFF_MS: Final = 100
NS_IN_MS: Final = 1_000_000
Futures = Sequence[Future[RecordMetadata]]
T = TypeVar("T")
_LOGGER: Final = logging.getLogger("stratalog.client")


class Delivery:
    """Callable that encodes and appends a producer's batches. Thread-safe for batches of different partitions.

    Args:
        sequences: sequence numbers; None for a producer that is not idempotent.
        on_error: called with each error of an append, and with True if the records may have been appended nevertheless.
        codec: codec of the batches; None for no compression.
        durability: ``written`` or ``durable``; None is the engine's setting.
        timeout_ms: how long an append that failed with a retriable error is retried.
        transactional: True if the batches belong to transactions.
    """

    def __init__(
        self,
        logs: Logs,
        components: Components,
        sequences: Sequences | None,
        on_error: Callable[[BaseException, bool], None],
        *,
        codec: Codec | None,
        durability: str | None,
        timeout_ms: int,
        transactional: bool,
    ) -> None:
        self._logs, self._clock = logs, components.env.clock
        self._codec, self._durability, self._timeout_ms = codec, durability, timeout_ms
        self._transactional = transactional
        self._formats, self._format = components.formats, components.formats.of(MAGIC, "", 0)
        self._sequences, self._on_error = sequences, on_error

    def __call__(self, batch: PendingBatch) -> None:
        """Append a batch, and set the result or the error of each of its futures. Raises nothing."""
        try:
            self._deliver(batch.name, batch.records, batch.futures)
        except BaseException as error:  # noqa: BLE001 - it is set in the futures, otherwise their callers wait for ever
            self._fail(batch.name, [future for future in batch.futures if not future.done()], error)

    def _deliver(self, name: TopicPartition, records: Sequence[Record], futures: Futures) -> None:
        try:
            result, has_own_times = self._append(name, records)
        except (RecordTooLargeError, RecordBatchTooLargeError) as error:
            if len(records) == 1:
                self._fail(name, futures, error)
                return
            middle = len(records) // 2
            self._deliver(name, records[:middle], futures[:middle])
            self._deliver(name, records[middle:], futures[middle:])
        except InvalidRecordError as error:
            self._deliver_valid(name, records, futures, error)
        except StorageError as error:
            self._fail(name, futures, error)
        else:
            for index, (record, future) in enumerate(zip(records, futures, strict=True)):
                stamp = record.timestamp_ms if has_own_times else result.append_time_ms
                _settle(future.set_result, RecordMetadata(*name, result.base_offset + index, stamp))

    def _append(self, name: TopicPartition, records: Sequence[Record]) -> tuple[AppendResult, bool]:
        """Append records as one batch, and retry after retriable errors until the timeout.

        Returns:
            The result, and True if the records keep the timestamps of the producer (``CreateTime``).
        """
        log = self._logs.log(*name)
        sequences = self._sequences
        if self._formats.for_version(log.config.record_version).magic < MAGIC and not self._transactional:
            sequences = None  # older formats have no field for producer ids; Kafka refuses such batches
        data = self._encode(name, records, sequences)
        end_ns = self._clock.monotonic_ns() + self._timeout_ms * NS_IN_MS
        while True:
            try:
                result = log.append_as_leader(data, self._durability)
            except StorageError as error:
                is_moving = isinstance(error, ClosedError) and log.healthy  # to another directory, or deleted
                may_pass = error.retriable or is_moving
                if not may_pass or self._clock.monotonic_ns() >= end_ns:
                    raise
                self._clock.sleep_ms(RETRY_BACKOFF_MS)
                log = self._logs.log(*name)
            else:
                if sequences is not None:
                    sequences.advance(name, len(records))
                return result, log.config.message_timestamp_type == "CreateTime"

    def _encode(self, name: TopicPartition, records: Sequence[Record], sequences: Sequences | None) -> bytearray:
        header = BatchHeader()
        if sequences is not None:
            (producer_id, epoch), sequence = sequences.next_sequence(name)
            header = BatchHeader(
                producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=self._transactional
            )
        return self._format.encode(records, header, self._codec, None)

    def _deliver_valid(
        self, name: TopicPartition, records: Sequence[Record], futures: Futures, error: InvalidRecordError
    ) -> None:
        """Fail the invalid records that ``error`` lists, and deliver the others. Kafka's producer fails all records."""
        errors_by_index = dict(error.record_errors)
        if not errors_by_index:
            self._fail(name, futures, error)
            return
        for index, message in errors_by_index.items():
            self._fail(name, futures[index : index + 1], type(error)(message))
        valid = [index for index in range(len(records)) if index not in errors_by_index]
        if valid:
            self._deliver(name, [records[index] for index in valid], [futures[index] for index in valid])

    def _fail(self, name: TopicPartition, futures: Futures, error: BaseException) -> None:
        unsure = _may_be_written(error)
        if unsure and self._sequences is not None and not self._transactional:
            self._sequences.restart(name)
        self._on_error(error, unsure)
        for future in futures:
            _settle(future.set_exception, error)


def _settle(settle: Callable[[T], None], outcome: T) -> None:
    """Set the result or the error of a future. Log an exception of a callback that the future itself does not log."""
    try:
        settle(outcome)
    except BaseException:  # SystemExit for instance: the other futures of the batch must get their results
        _LOGGER.exception("a callback of a producer's future failed")


def _may_be_written(error: BaseException) -> bool:
    """Return True if the log may contain the records in spite of this error, or has refused their sequence numbers."""
    if isinstance(error, OutOfOrderSequenceError):
        return True
    return not isinstance(error, RecordError | UnknownTopicError | DiskFullError)
