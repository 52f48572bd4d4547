"""Transaction coordinator: transactions of all producers of an engine, and the end markers in the logs.

As in Kafka, a transaction ends in three steps. First, PREPARE_COMMIT or PREPARE_ABORT is stored, which decides the
outcome. Then markers are appended to all partitions of the transaction. Last, COMPLETE_COMMIT or COMPLETE_ABORT is
stored. After a crash between two steps, ``recover`` completes the prepared transactions.

Source: apache/kafka TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from stratalog.client.committed_offsets import CommittedOffset
from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.log_access import Logs
from stratalog.client.sequences import ProducerId, is_external, is_internal, new_external_id, new_producer_id
from stratalog.client.statetopic import PARTITIONS, Compact
from stratalog.client.transactions.transaction_ends import TransactionEnds
from stratalog.client.transactions.transaction_log import TransactionLog
from stratalog.client.transactions.transaction_states import (
    COMPLETED,
    EPOCH_RAISING,
    UNFINISHED,
    TransactionalProducer,
    add_partitions,
    check_contains,
    check_expected,
    initialize,
    prepare_end,
    prepare_end_with_next_epoch,
    prepare_fence,
)
from stratalog.env import Env
from stratalog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    StorageError,
)
from stratalog.model.messages.transactions_topic import TransactionState, TransactionStatus
from stratalog.model.names import TopicPartition

NEVER_MS: Final = 1 << 62
_LOGGER: Final = logging.getLogger("stratalog.client")


class TransactionCoordinator:
    """Coordinator of the transactional producers of an engine. Thread-safe; each transactional id has its own locks.

    While a transaction is being ended, ``open`` and ``end`` wait. For producers outside the process, such as clients of
    a gateway, ``init_producer`` and ``end_decided`` raise ConcurrentTransactionsError instead. Methods raise
    StorageError if a log cannot be read or written. Methods with the argument ``producer``, the producer id and epoch,
    raise ProducerFencedError if another producer has the transactional id now, or the transaction timed out, and its
    subclass InvalidProducerIdMappingError if the transactional id is unknown. Their argument ``version`` is the
    transaction version: 2 if each transaction increases the producer epoch at its end (KIP-890), otherwise 0.

    Args:
        compact: compacts a log of the states; see ``StateTopic``.
        expiration_ms: how long a transactional id without an open transaction is kept after its last use.
        partitions: number of partitions of ``__transaction_state`` if the topic must be created.
    """

    def __init__(
        self,
        logs: Logs,
        env: Env,
        offsets: GroupOffsets,
        compact: Compact | None = None,
        expiration_ms: int = NEVER_MS,
        partitions: int = PARTITIONS,
    ) -> None:
        self._env, self._offsets = env, offsets
        self._log = TransactionLog(logs, compact, partitions)
        self._ends = TransactionEnds(logs, self._log, env.clock, expiration_ms)

    # --- for producers of the engine ---------------------------------------------------------------------------------

    def open(self, transactional_id: str, timeout_ms: int) -> ProducerId:
        """Return the producer id and epoch for a new producer of this engine.

        Older producers with the same transactional id are fenced. Their open transaction is aborted, and a prepared
        transaction is completed.
        """
        self.recover()
        return self._open(transactional_id, timeout_ms, None, external=False)

    def is_committing(self, transactional_id: str, producer: ProducerId) -> bool:
        """Return True if the producer's latest transaction is prepared for commit, or committed."""
        current = self._require_state(transactional_id)
        if current.producer != producer:
            raise ProducerFencedError(f"another producer has taken over transactional_id={transactional_id}")
        return current.status in {TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT}

    # --- for all producers -------------------------------------------------------------------------------------------

    def init_producer(self, transactional_id: str, timeout_ms: int, expected: ProducerId | None = None) -> ProducerId:
        """Return the producer id and epoch for a producer outside the process (InitProducerId).

        If the engine restarts later, an open transaction of the new producer stays open until its timeout.

        Args:
            transactional_id: older producers with this id are fenced. Their open transaction is aborted, and a prepared
                transaction is completed.
            timeout_ms: how long a transaction may be open.
            expected: current producer id and epoch of a producer that continues after an error (KIP-360); None for a
                new producer.

        Raises:
            ProducerFencedError: another producer has the transactional id now.
            ConcurrentTransactionsError: a transaction of the id is being ended.
        """
        return self._open(transactional_id, timeout_ms, expected, external=True)

    def add_partitions(
        self, transactional_id: str, producer: ProducerId, names: Collection[TopicPartition], *, version: int = 0
    ) -> None:
        """Add partitions to a producer's transaction before its first write there. Begin a transaction if none is open.

        The partitions need not exist. Raise ConcurrentTransactionsError if the end of the transaction has started.
        """
        with self._ends.changing(transactional_id):
            self._add(transactional_id, producer, names, version)

    def add_offsets(self, transactional_id: str, producer: ProducerId, group: str) -> None:
        """Add the partition of ``__consumer_offsets`` with a group's offsets to a transaction.

        The call creates ``__consumer_offsets`` if the topic does not exist. Raises the errors of ``add_partitions`` and
        ``Engine.create_topic``.
        """
        self.add_partitions(transactional_id, producer, [self._offsets.partition_of(group)])

    def check_partitions(self, transactional_id: str, producer: ProducerId, names: Collection[TopicPartition]) -> None:
        """Raise an error unless the producer's open transaction contains all of these partitions.

        Raises:
            ConcurrentTransactionsError: the end of the transaction has started.
            InvalidTxnStateError: a partition was not added to the transaction, or no transaction is open.
        """
        with self._ends.changing(transactional_id):
            check_contains(self._require_state(transactional_id), producer, names)

    @contextlib.contextmanager
    def writing(
        self, transactional_id: str, producer: ProducerId, name: TopicPartition, *, version: int = 0
    ) -> Iterator[None]:
        """Return a context manager for the append of a transactional batch to partition ``name``.

        While the block runs, the end of the transaction and all other changes of the transaction wait. The block must
        therefore not call a method of the coordinator with this ``transactional_id``. With ``version`` 2, a partition
        that is not in the transaction is added (KIP-890). Raises the errors of ``check_partitions`` and
        ``add_partitions``.
        """
        with self._ends.changing(transactional_id):
            if version >= EPOCH_RAISING:
                self._add(transactional_id, producer, [name], version)
            else:
                check_contains(self._require_state(transactional_id), producer, [name])
            yield

    def commit_offsets(
        self,
        transactional_id: str,
        producer: ProducerId,
        group: str,
        offsets: Mapping[TopicPartition, int | CommittedOffset],
        *,
        version: int = 0,
    ) -> None:
        """Append offsets of a group to ``__consumer_offsets``; the commit of the transaction makes the offsets valid.

        With ``version`` 0, call ``add_offsets`` before. With ``version`` 2, this call adds the partition to the
        transaction.

        Raises:
            ConfigError: an offset that is given as an integer is negative.
            UnknownTopicError: a partition does not exist here.
            ConcurrentTransactionsError: the end of the transaction has started.
            InvalidTxnStateError: ``version`` is 0, and no transaction is open, or ``add_offsets`` was not called.
        """
        name, records = self._offsets.records(group, offsets)
        with self.writing(transactional_id, producer, name, version=version):
            self._offsets.append_in_transaction(name, records, producer)

    def end(
        self,
        transactional_id: str,
        producer: ProducerId,
        *,
        commit: bool,
        version: int = 0,
        durability: str | None = None,
    ) -> ProducerId:
        """End a transaction. If the call fails, a repeated call continues at the failed step.

        Args:
            transactional_id: transactional id of the producer.
            producer: its producer id and epoch.
            commit: True to commit the transaction, False to abort it.
            version: with 2, an abort is allowed without an open transaction.
            durability: ``written`` or ``durable``; None is the engine's setting. With ``durable``, each step is on disk
                before the next step begins.

        Returns:
            The producer id and epoch that the producer must use for its next transaction.

        Raises:
            InvalidTxnStateError: no transaction is open, or its end has started with the opposite outcome.
            StorageError: a log cannot be read or written. If ``state`` returns a prepared transaction, the outcome is
                decided, but the end is not complete; otherwise the outcome is not decided.
        """
        after = self._decide(transactional_id, producer, commit=commit, version=version, durability=durability)
        self._complete(transactional_id, after, durability)
        return after.producer

    def end_decided(self, transactional_id: str, producer: ProducerId, *, commit: bool, version: int = 0) -> ProducerId:
        """End a transaction of a producer outside the process. ``end`` describes arguments, result and errors.

        Raise ConcurrentTransactionsError if another thread is ending the same transaction. As in Kafka, an error after
        the outcome is decided is only logged, and a background duty writes the missing markers.
        """
        if self._ends.is_ending(transactional_id):
            raise ConcurrentTransactionsError(f"the transaction is being ended (transactional_id={transactional_id})")
        after = self._decide(transactional_id, producer, commit=commit, version=version)
        try:
            self._complete(transactional_id, after)
        except StorageError:
            _LOGGER.exception("a decided transaction is not complete yet transactional_id=%s", transactional_id)
        return after.producer

    # --- states ------------------------------------------------------------------------------------------------------

    def state(self, transactional_id: str) -> TransactionState | None:
        """Return the state of a producer; None if the id is unknown. Raise StorageError if the state cannot be read."""
        current = self._log.find(transactional_id)
        return None if current is None else current.state

    def states(self) -> dict[str, TransactionState]:
        """Return the state of each transactional producer, by transactional id. Raises the errors of ``state``."""
        return self._log.states()

    def recover(self) -> None:
        """End the transactions that an earlier engine left unfinished; later calls do nothing. Errors are logged.

        Prepared transactions are completed. Open transactions of producers that ``open`` created are aborted, because
        these producers ended with their engine. Open transactions of producers outside the process continue until their
        timeout.
        """
        self._ends.recover()

    def abort_expired(self) -> tuple[str, ...]:
        """Abort the transactions that exceed their timeout, and return their transactional ids, sorted.

        A background duty calls this method. Prepared transactions whose end failed earlier are completed, and expired
        transactional ids are deleted. Errors are logged.
        """
        return self._ends.abort_expired()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _external_id(self) -> int:
        return new_external_id(self._env.chance)

    def _internal_id(self) -> int:
        return new_producer_id(self._env.chance).producer_id

    def _decide(
        self, transactional_id: str, producer: ProducerId, *, commit: bool, version: int, durability: str | None = None
    ) -> TransactionalProducer:
        """Store the outcome of a transaction. Return the prepared state; for a repeated call, the present state."""
        with self._ends.changing(transactional_id):
            current, now_ms = self._require_state(transactional_id), self._env.clock.now_ms()
            if version >= EPOCH_RAISING:
                after = prepare_end_with_next_epoch(current, producer, now_ms, self._external_id, commit=commit)
            else:
                after = prepare_end(current, producer, now_ms, commit=commit)
            if after is not current:
                self._log.store(transactional_id, after, durability)
        return after

    def _complete(self, transactional_id: str, decided: TransactionalProducer, durability: str | None = None) -> None:
        if decided.status not in COMPLETED:
            with self._ends.ending(transactional_id):
                self._ends.complete(transactional_id, durability)

    def _require_state(self, transactional_id: str) -> TransactionalProducer:
        current = self._log.find(transactional_id)
        if current is None:
            raise InvalidProducerIdMappingError(f"there is no producer with transactional_id={transactional_id}")
        return current

    def _open(
        self, transactional_id: str, timeout_ms: int, expected: ProducerId | None, *, external: bool
    ) -> ProducerId:
        """Return the id and epoch for a new producer. ``external`` is True for a producer outside the process."""
        with self._ends.ending(transactional_id, waits=not external):
            while True:
                with self._ends.changing(transactional_id):
                    current, now_ms = self._log.find(transactional_id), self._env.clock.now_ms()
                    if current is None or current.status not in UNFINISHED:
                        rotates = current is not None and (is_internal if external else is_external)(
                            current.state.producer_id
                        )
                        new_id = self._external_id if external else self._internal_id
                        new = initialize(current, timeout_ms, now_ms, expected, new_id, rotates=rotates)
                        self._log.store(transactional_id, new)
                        return new.producer
                    check_expected(current, expected)
                    if current.status == TransactionStatus.ONGOING:
                        # A repeated request may have the previous epoch, but not after its response was used.
                        if expected is not None and expected != current.producer:
                            raise ProducerFencedError(f"a transaction of epoch {current.producer.epoch} is open")
                        self._log.store(transactional_id, prepare_fence(current, now_ms))
                        expected = None  # the abort increases the epoch
                self._ends.complete(transactional_id)

    def _add(
        self, transactional_id: str, producer: ProducerId, names: Collection[TopicPartition], version: int
    ) -> None:
        current = self._require_state(transactional_id)
        after = add_partitions(current, producer, names, self._env.clock.now_ms(), version)
        if after is not current:
            self._log.store(transactional_id, after)
