"""Factory of an engine's producers, with the state that all producers and consumers share."""

from __future__ import annotations

import contextlib
import threading
from typing import TypedDict, Unpack

from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.log_access import Logs
from stratalog.client.producer import Producer, ProducerOptions
from stratalog.client.serializers import Serializer
from stratalog.client.statetopic import Compact
from stratalog.client.transactions.coordinator import TransactionCoordinator
from stratalog.client.transactions.transaction import Transaction
from stratalog.config.engine_settings import EngineConfig
from stratalog.errors import ClosedError, ConfigError
from stratalog.segment.components import Components


class ProducerKeywords(TypedDict, total=False):
    """Types of the keyword arguments of ``Engine.producer``: the fields of ``ProducerOptions``."""

    batch_size_bytes: int
    linger_ms: int
    compression: str
    max_in_flight: int
    buffer_bytes: int
    idempotent: bool
    durability: str | None
    delivery_timeout_ms: int
    transaction_timeout_ms: int
    key_serializer: Serializer | None
    value_serializer: Serializer | None


class Clients:
    """Factory of an engine's producers, and the state that all producers and consumers share. Thread-safe.

    Args:
        logs: the engine.
        components: formats, codecs and environment of the engine.
        compact: compacts a log that stores the state of clients; see ``StateTopic``.
        settings: settings of the engine; None for the defaults.

    Attributes:
        logs: the engine.
        offsets: committed offsets and states of all groups.
        coordinator: transaction coordinator of all producers.
    """

    def __init__(
        self, logs: Logs, components: Components, compact: Compact | None = None, settings: EngineConfig | None = None
    ) -> None:
        self.logs, self._components = logs, components
        self._lock = threading.Lock()
        self._producers: set[Producer] = set()
        self._closed = False
        config = settings or EngineConfig()
        self.offsets = GroupOffsets(logs, components.env.clock, compact, config.offsets_partitions)
        self.coordinator = TransactionCoordinator(
            logs,
            components.env,
            self.offsets,
            compact,
            config.transactional_id_expiration_ms,
            config.transactions_partitions,
        )

    def producer(self, *, transactional_id: str | None = None, **options: Unpack[ProducerKeywords]) -> Producer:
        """Create a producer; see ``Engine.producer``. Raise ClosedError if the engine is closed."""
        producer_options = ProducerOptions(**options)
        producer_options.codec(self._components)
        transaction = None
        if transactional_id is not None:
            _check_transactional(transactional_id, producer_options)
            transaction = Transaction(
                self.coordinator,
                transactional_id,
                producer_options.transaction_timeout_ms,
                producer_options.durability,
                self._components.env.chance,
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the engine is closed")
            producer = Producer(
                self.logs,
                self._components,
                producer_options,
                offsets=self.offsets,
                transaction=transaction,
                closed=self._producers.discard,
            )
            self._producers.add(producer)
            return producer

    def close(self) -> None:
        """Close all open producers. Idempotent.

        Raises:
            StorageError: a producer could not end its transaction. All producers are closed nevertheless.
        """
        with self._lock:
            self._closed = True
        with contextlib.ExitStack() as closing:
            for producer in list(self._producers):
                closing.callback(producer.close)


def _check_transactional(transactional_id: str, options: ProducerOptions) -> None:
    """Raise ConfigError if the options do not allow transactions.

    Source: apache/kafka ProducerConfig, its rules for ``transactional.id``.
    """
    if not transactional_id:
        raise ConfigError("transactional_id must not be empty: use None for a producer without transactions")
    if not options.idempotent:
        raise ConfigError(
            f"a transactional producer must be idempotent: transactional_id={transactional_id} idempotent=False"
        )
