"""A producer: collects records in batches, and appends the batches to logs.

Source: apache/kafka KafkaProducer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from stratalog.client.committed_offsets import Committable
from stratalog.client.delivery import NS_IN_MS, Delivery
from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.log_access import Logs
from stratalog.client.partitioner import StickyPartitioner, partition_of_key
from stratalog.client.pending import Accumulator, RecordMetadata
from stratalog.client.sender import Sender
from stratalog.client.sequences import Sequences, new_producer_id
from stratalog.client.serializers import Serializer, serialize
from stratalog.client.transactions.transaction import Transaction
from stratalog.config.keys import INT_MAX
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ClosedError, InvalidTxnStateError, TransactionAbortedError, UnknownTopicError
from stratalog.model.argument_rules import Between, integer, wrong_type
from stratalog.model.arguments import CheckedArguments, NotNegative, Positive, checked, checks_itself
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.names import TopicPartition, partitions_of
from stratalog.model.offsets import Durability
from stratalog.model.records import Record
from stratalog.segment.components import Components
from stratalog.spi.codecs import Codec

UNCOMPRESSED: Final = "none"
RECORD_OVERHEAD_BYTES: Final = 21  # for a record whose varints have their usual sizes
HEADER_OVERHEAD_BYTES: Final = 4
_NO_SERIALIZERS: Final = (None, None)


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a producer.

    Attributes:
        batch_size_bytes: size of a full batch before compression. A full batch does not wait for ``linger_ms``.
        linger_ms: how long a batch that is not full waits for more records; 0 for no wait.
        compression: ``none``, or the name of a codec. A topic's ``compression.type`` other than ``producer`` takes
            precedence.
        max_in_flight: maximum number of batches that are appended concurrently, at most one for each partition.
        buffer_bytes: ``send`` waits while the buffer has this many bytes of records, or more.
        idempotent: True if records carry a producer id and sequence numbers, which prevent duplicates after a retry.
        durability: ``written`` or ``durable``; None is the engine's setting.
        delivery_timeout_ms: how long an append that failed with a retriable error is retried.
        transaction_timeout_ms: how long a transaction may be open before the coordinator aborts it.
        key_serializer: converts a key that is not None to bytes; None if keys are bytes already.
        value_serializer: converts a value that is not None to bytes; None if values are bytes already.

    Raises:
        ConfigError: an option is out of its range, or ``durability`` is not one of these words.
    """

    batch_size_bytes: Positive = 16_384
    linger_ms: NotNegative = 0
    compression: str = UNCOMPRESSED
    max_in_flight: Positive = 5
    buffer_bytes: Positive = 32 << 20
    idempotent: bool = True
    durability: str | None = None
    delivery_timeout_ms: NotNegative = 120_000
    transaction_timeout_ms: Annotated[int, Between(1, INT_MAX)] = 60_000  # its field in __transaction_state has 32 bits
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    def __post_init__(self) -> None:
        if self.durability is not None:
            Durability.of(self.durability)

    def codec(self, components: Components) -> Codec | None:
        """Return the codec; None for no compression. Raises the errors of ``CodecTable.by_name``."""
        return None if self.compression == UNCOMPRESSED else components.codecs.by_name(self.compression)


class _PartitionCache(NamedTuple):
    """Partitions of topics, by name of the topic. The cache is valid while ``Logs.topic_changes`` is ``changes``."""

    changes: int
    partitions: dict[str, tuple[TopicPartition, ...]]


class Producer(CheckedArguments, Closeable):
    """A sender of records to the logs of an engine. A context manager; thread-safe. Created by ``Engine.producer``.

    After ``close``, ``send`` and the methods of transactions raise ClosedError. The methods of transactions raise
    InvalidTxnStateError if the producer is not transactional, and ProducerFencedError if another producer has the
    transactional id now, or the transaction timed out. ``flush``, ``close`` and the end of a transaction raise
    ConfigError in a callback of a future.

    Args:
        transaction: transaction state of a transactional producer; None for a producer without transactions.
        closed: called with the producer when the producer is closed.
    """

    def __init__(
        self,
        logs: Logs,
        components: Components,
        options: ProducerOptions,
        *,
        offsets: GroupOffsets,
        transaction: Transaction | None,
        closed: Callable[[Producer], None],
    ) -> None:
        self._logs, self._clock, self._offsets = logs, components.env.clock, offsets
        self._transaction, self._on_close = transaction, closed
        # Not the system's random source: a call to it switches to another thread, which costs milliseconds.
        chance = random.Random(components.env.chance.getrandbits(64))  # noqa: S311 - a partition is not secret
        self._partitioner = StickyPartitioner(options.batch_size_bytes, chance)
        self._serializers = options.key_serializer, options.value_serializer
        self._cache = _PartitionCache(logs.topic_changes, {})
        sequences = None
        if transaction is not None:
            sequences = transaction.sequences
        elif options.idempotent:
            sequences = Sequences(new_producer_id(components.env.chance), components.env.chance)
        delivery = Delivery(
            logs,
            components,
            sequences,
            self._note_failure,
            codec=options.codec(components),
            durability=options.durability,
            timeout_ms=options.delivery_timeout_ms,
            transactional=transaction is not None,
        )
        self._sender = Sender(
            Accumulator(options.batch_size_bytes, options.linger_ms * NS_IN_MS),
            delivery,
            self._clock,
            max_in_flight=options.max_in_flight,
            buffer_bytes=options.buffer_bytes,
        )
        self._closed = self._ended = False
        ends_with_fork(self)

    def __repr__(self) -> str:
        name = None if self._transaction is None else self._transaction.transactional_id
        return f"Producer(transactional_id={name!r}, partitions={sum(map(len, self._cache.partitions.values()))})"

    # --- records -----------------------------------------------------------------------------------------------------

    @checks_itself
    def send(
        self,
        topic: str,
        *,
        key: Any = None,
        value: Any = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = NO_TIMESTAMP,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Queue a record, and return a future, whose result is the ``RecordMetadata`` of the appended record.

        If the append fails, the future has the error. The call waits while the buffer is full, except in a callback of
        a future. Such a callback runs on a thread of the producer: until the callback returns, no further batch of that
        partition is delivered.

        Args:
            topic: topic of the record.
            key: bytes, an argument of ``key_serializer``, or None. The key selects the same partition as in Kafka's
                producer, so records with equal keys go to one partition.
            value: bytes, an argument of ``value_serializer``, or None, which is a tombstone in a compacted topic.
            headers: pairs of name and value.
            timestamp_ms: timestamp of the record; -1 for the current time.
            partition: partition of the record; None to choose it by the key, or any partition if there is no key.

        Raises:
            UnknownTopicError: the topic or partition does not exist.
            SerializationError: a serializer failed; an open transaction is not affected.
            InvalidTxnStateError: the producer is transactional, and it has no open transaction, or the end of the
                transaction has started.
            TransactionAbortedError: an earlier record of the transaction was not appended.
            ProducerFencedError: another producer has the transactional id now, or the transaction timed out.
            StorageError: the partition could not be added to the transaction.
            ClosedError: after ``close``.
        """
        self._check_open()
        if type(topic) is not str and not isinstance(topic, str):
            raise wrong_type("topic of send()", "text", topic)
        if partition is not None and type(partition) is not int:
            partition = integer("partition of send()", partition)
        if self._serializers != _NO_SERIALIZERS:
            key = serialize(self._serializers[0], "key", key, topic)
            value = serialize(self._serializers[1], "value", value, topic)
        stamp = self._clock.now_ms() if timestamp_ms == NO_TIMESTAMP else timestamp_ms
        record = Record(timestamp_ms=stamp, key=key, value=value, headers=headers)
        size_bytes = _size(record)
        name = self._partition(topic, partition, key, size_bytes)
        return self._put(name, record, size_bytes)

    def _put(self, name: TopicPartition, record: Record, size_bytes: int) -> Future[RecordMetadata]:
        if self._transaction is None:
            return self._sender.put(name, record, size_bytes)
        with self._transaction.sending(name):
            return self._sender.put(name, record, size_bytes)

    def _partition(self, topic: str, partition: int | None, key: bytes | None, size_bytes: int) -> TopicPartition:
        cache = self._cache
        if cache.changes != self._logs.topic_changes:
            cache = self._cache = _PartitionCache(self._logs.topic_changes, {})
        partitions = cache.partitions.get(topic)
        if partitions is None:
            partitions = cache.partitions[topic] = partitions_of(self._logs.partitions(), topic, "this engine")
        if partition is not None:
            name = TopicPartition(topic, partition)
            if name not in partitions:
                raise UnknownTopicError(f"there is no {name}, topic {topic} has {len(partitions)} partitions")
            return name
        if key is not None:
            return partitions[partition_of_key(key, len(partitions))]
        return partitions[self._partitioner.choose(topic, len(partitions), size_bytes)]

    def flush(self) -> None:
        """Wait until all queued records are appended or have failed, and their futures have the results or errors."""
        self._sender.flush()

    # --- transactions ------------------------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin a transaction. Readers with ``read_committed`` see its records only after its commit.

        Raises:
            InvalidTxnStateError: a transaction is open.
            ProducerFencedError: an earlier call or append has detected that the producer is fenced. If this is not
                detected yet, the first ``send`` of the transaction raises the error.
        """
        self._check_open()
        self._require_transaction().begin()

    def send_offsets(self, group: str, offsets: Committable) -> None:
        """Queue a group's offsets as part of the transaction. The commit of the transaction also commits the offsets.

        If the offsets cannot be appended, ``commit_transaction`` raises TransactionAbortedError. Raises the errors of
        ``send``, and ConfigError if an offset that is given as an integer is negative.
        """
        self._check_open()
        self._require_transaction().check_open()
        name, records = self._offsets.records(group, offsets)
        for record in records:
            self._put(name, record, _size(record))

    def commit_transaction(self) -> None:
        """Send the queued records, and commit the transaction.

        Raises:
            TransactionAbortedError: a record could not be appended. Call ``abort_transaction``.
            InvalidTxnStateError: no transaction is open, or an earlier abort failed after it was prepared. In the last
                case, call ``abort_transaction`` again.
            StorageError: a log could not be written; the transaction stays open, and the call can be repeated.
        """
        transaction = self._require_transaction()
        self._check_open()
        self._sender.check_outside()
        with transaction.ending(commit=True):
            self._sender.flush()

    def abort_transaction(self) -> None:
        """Abort the transaction. Records that are still queued are not sent; their futures get TransactionAbortedError.

        Raises:
            InvalidTxnStateError: no transaction is open, or an earlier commit failed after it was prepared. In the last
                case, call ``commit_transaction`` again.
            StorageError: a log could not be written; the transaction stays open, and the call can be repeated.
        """
        transaction = self._require_transaction()
        self._check_open()
        self._sender.check_outside()
        with transaction.ending(commit=False):
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        for batch in self._sender.drop_waiting():
            for future in batch.futures:
                future.set_exception(TransactionAbortedError("the transaction was aborted before the record was sent"))
        self._sender.flush()

    def _require_transaction(self) -> Transaction:
        if self._transaction is None:
            raise InvalidTxnStateError("the producer is not transactional: create it with transactional_id=NAME")
        return self._transaction

    def _note_failure(self, error: BaseException, unsure: bool) -> None:  # noqa: FBT001 - of a callback
        if self._transaction is not None:
            self._transaction.note_failure(error, unsure=unsure)

    # --- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send the queued records, and end the threads. Idempotent; after Ctrl-C, another call continues.

        An open transaction is aborted, and its queued records are not sent. If a commit failed after it was prepared,
        the transaction is committed, because readers may have seen its records already.

        Raises:
            StorageError: the transaction could not be ended. A background duty, or the next producer with the same
                transactional id, ends the transaction later.
        """
        if self._ended:
            return
        self._sender.check_outside()
        self._closed = True
        try:
            if self._transaction is not None and self._transaction.is_open:
                with self._transaction.ending(commit=self._transaction.is_committing):
                    self._drop_waiting()
        finally:
            self._sender.close()
            self._on_close(self)
            self._ended = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed")


def _size(record: Record) -> int:
    """Return the approximate size (bytes) of a record in a batch."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    return size
