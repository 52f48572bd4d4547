"""A producer: records in, batches out.

Source: apache/kafka KafkaProducer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Final

from stratalog.client.delivery import NS_IN_MS, Delivery, DeliveryOptions
from stratalog.client.group_offsets import Committable, GroupOffsets
from stratalog.client.log_access import Logs, partitions_of
from stratalog.client.partitioner import StickyPartitioner, partition_of_key
from stratalog.client.pending import Accumulator, RecordMetadata
from stratalog.client.sender import Sender
from stratalog.client.sequences import Sequences, new_producer_id
from stratalog.client.transaction import Transaction
from stratalog.config.keys import INT_MAX
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ClosedError, InvalidTxnStateError, TransactionAbortedError, UnknownTopicError
from stratalog.model.argument_rules import Between, integer, wrong_type
from stratalog.model.arguments import CheckedArguments, NotNegative, Positive, checked, checks_itself
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Durability
from stratalog.model.records import Record
from stratalog.segment.components import Components
from stratalog.spi.codecs import Codec

UNCOMPRESSED: Final = "none"
RECORD_OVERHEAD_BYTES: Final = 21  # of a record with its numbers at their usual sizes
HEADER_OVERHEAD_BYTES: Final = 4


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer works.

    Attributes:
        batch_size_bytes: a batch with so many bytes of records waits for no more.
        linger_ms: how long one that is not full waits for more; 0 sends as soon as a thread is free.
        compression: ``none``, or the name of a codec; a topic's ``compression.type`` may choose another.
        max_in_flight: how many batches, each of another partition, are appended at once.
        buffer_bytes: ``send`` waits while so many bytes of records wait.
        idempotent: records carry an id and sequence numbers, so that none stands twice after a retry.
        durability: ``written`` or ``durable``; None is the engine's setting.
        delivery_timeout_ms: how long an append that may succeed later is repeated.
        transaction_timeout_ms: how long a transaction may be open before it may be aborted by others.
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

    def __post_init__(self) -> None:
        if self.durability is not None:
            Durability.of(self.durability)

    def codec(self, parts: Components) -> Codec | None:
        """The codec; UnsupportedCompressionError if it is not installed."""
        return None if self.compression == UNCOMPRESSED else parts.codecs.by_name(self.compression)


class Producer(CheckedArguments, Closeable):
    """Sends records to the logs of an engine. A context manager; thread-safe. Made by ``Engine.producer``.

    Args:
        logs: of the engine.
        parts: formats, codecs and the clock.
        options: how it works.
        offsets: where groups' offsets stand.
        transaction: of a transactional producer, else None.
        closed: told once, when the producer is closed.
    """

    def __init__(
        self,
        logs: Logs,
        parts: Components,
        options: ProducerOptions,
        *,
        offsets: GroupOffsets,
        transaction: Transaction | None,
        closed: Callable[[Producer], None],
    ) -> None:
        self._logs, self._clock, self._offsets = logs, parts.env.clock, offsets
        self._transaction, self._on_close = transaction, closed
        # Not the system's source itself: asking it lets another thread take over, which costs milliseconds.
        chance = random.Random(parts.env.chance.getrandbits(64))  # noqa: S311 - nobody has to guess a partition
        self._partitioner = StickyPartitioner(options.batch_size_bytes, chance)
        self._partitions: dict[str, tuple[TopicPartition, ...]] = {}
        sequences = None
        if transaction is not None:
            sequences = transaction.sequences
        elif options.idempotent:
            sequences = Sequences(new_producer_id(parts.env.chance), parts.env.chance)
        delivery = Delivery(
            logs,
            parts,
            DeliveryOptions(
                options.codec(parts), options.durability, options.delivery_timeout_ms, transaction is not None
            ),
            sequences,
            self._failed,
        )
        self._sender = Sender(
            Accumulator(options.batch_size_bytes, options.linger_ms * NS_IN_MS),
            delivery,
            self._clock,
            max_in_flight=options.max_in_flight,
            buffer_bytes=options.buffer_bytes,
        )
        self._closed = False
        ends_with_fork(self)

    # --- records -----------------------------------------------------------------------------------------------------

    @checks_itself
    def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = NO_TIMESTAMP,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Send a record, later and together with others; the future tells where it went, or why not.

        Waits while the buffer is full. A callback of the future runs in a thread of the producer and holds up its
        partition.

        Args:
            topic: where to.
            key: records with equal keys go to one partition, the same one as with Kafka's own clients.
            value: None is a tombstone in a compacted topic.
            headers: pairs of name and value.
            timestamp_ms: -1 is the clock's time.
            partition: where to, whatever the key.

        Raises:
            UnknownTopicError: there is no such topic or partition.
            InvalidTxnStateError: the producer is transactional, and in no transaction that could still be committed.
            ProducerFencedError: another producer has the transactional id now.
            ClosedError: after ``close``.
        """
        self._check_open()
        if type(topic) is not str and not isinstance(topic, str):
            raise wrong_type("topic of send()", "text", topic)
        if partition is not None and type(partition) is not int:
            partition = integer("partition of send()", partition)
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
        known = self._partitions.get(topic)
        if known is None or (partition is not None and partition >= len(known)):
            known = self._partitions[topic] = partitions_of(self._logs, topic)
        if partition is not None:
            name = TopicPartition(topic, partition)
            if name not in known:
                raise UnknownTopicError(f"there is no {name}, topic {topic} has {len(known)} partitions")
            return name
        if key is not None:
            return known[partition_of_key(key, len(known))]
        return known[self._partitioner.choose(topic, len(known), size_bytes)]

    def flush(self) -> None:
        """Wait until all that was sent is appended, or has failed; how it went is told by the futures.

        Raises:
            ConfigError: called from a future's callback.
        """
        self._sender.flush()

    # --- transactions ------------------------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin a transaction: what is sent until its end is seen by ``read_committed`` readers at once, or never.

        Raises:
            InvalidTxnStateError: the producer is not transactional, or a transaction is open.
            ProducerFencedError: another producer has the transactional id now.
        """
        self._check_open()
        self._transactional().begin()

    def send_offsets(self, group: str, offsets: Committable) -> None:
        """Commit a group's offsets as part of the transaction.

        Raises:
            InvalidTxnStateError, ProducerFencedError: as ``send``.
            ConfigError, UnknownTopicError: as ``Consumer.commit``.
        """
        self._check_open()
        self._transactional().check_open()
        name, records = self._offsets.records(group, offsets)
        for record in records:
            self._put(name, record, _size(record))

    def commit_transaction(self) -> None:
        """Send what waits, and end the transaction.

        Raises:
            TransactionAbortedError: a record could not be appended: abort the transaction.
            InvalidTxnStateError: there is none.
            ProducerFencedError: another producer has the transactional id now, or the transaction took too long.
        """
        transaction = self._transactional()
        self._check_open()
        self._sender.check_outside()
        with transaction.ending(commit=True):
            self._sender.flush()

    def abort_transaction(self) -> None:
        """End the transaction as if nothing had been sent; futures of what still waited raise TransactionAbortedError.

        Raises:
            InvalidTxnStateError: there is none.
            ProducerFencedError: another producer has the transactional id now, or the transaction took too long.
        """
        transaction = self._transactional()
        self._check_open()
        self._sender.check_outside()
        with transaction.ending(commit=False):
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        for batch in self._sender.drop_waiting():
            for future in batch.futures:
                future.set_exception(TransactionAbortedError("the transaction was aborted before the record was sent"))

    def _transactional(self) -> Transaction:
        if self._transaction is None:
            raise InvalidTxnStateError("the producer is not transactional: engine.producer(transactional_id=NAME)")
        return self._transaction

    def _failed(self, error: BaseException, unsure: bool) -> None:  # noqa: FBT001 - of a callback
        if isinstance(error, UnknownTopicError):
            self._partitions.clear()  # a topic was deleted, and may be made again with other partitions
        if self._transaction is not None:
            self._transaction.failed(error, unsure=unsure)

    # --- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits, abort an open transaction, and end the threads. Twice is fine.

        A transaction whose commit failed half way is committed: that was settled, and some may have seen it.

        Raises:
            StorageError: the transaction could not be ended; the background duties try again, and whoever uses its id.
        """
        if self._closed:
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

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed")


def _size(record: Record) -> int:
    """About the bytes of a record in a batch."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    return size
