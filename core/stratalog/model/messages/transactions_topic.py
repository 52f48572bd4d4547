"""Records of ``__transaction_state``: the state of each transactional producer.

A record without a value is a tombstone.

Source: apache/kafka TransactionLog; the schemas TransactionLogKey (version 0), TransactionLogValue (0 and 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.schema import SchemaReader
from stratalog.model.messages.structures import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Schema,
    array_of,
    nested,
    nullable_array_of,
    stored,
    structure,
)

TRANSACTIONS_TOPIC: Final = "__transaction_state"


class TransactionStatus(IntEnum):
    """The status of a transaction. Kafka defines the numbers, and records contain them: never change them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@structure
class TransactionKey:
    """The key of a record: the producer's transactional id."""

    transactional_id: str = stored(STRING)


@structure
class TransactionPartitions:
    """Partitions of a topic that a transaction wrote to."""

    topic: str = stored(STRING)
    partitions: tuple[int, ...] = stored(array_of(INT32))


@structure
class TransactionState:
    """The state of a transactional producer.

    Attributes:
        status: a ``TransactionStatus``, or an unknown number from a later release of Kafka.
        partitions: partitions of the transaction; None in the state EMPTY, after each start of the producer.
        start_timestamp_ms: start of the transaction (ms since 1970); -1 in the state EMPTY.
    """

    producer_id: int = stored(INT64)
    producer_epoch: int = stored(INT16)
    timeout_ms: int = stored(INT32)
    status: int = stored(INT8)
    partitions: tuple[TransactionPartitions, ...] | None = stored(nullable_array_of(nested(TransactionPartitions)))
    last_update_timestamp_ms: int = stored(INT64)
    start_timestamp_ms: int = stored(INT64)
    previous_producer_id: int = stored(INT64, tag=0, default=-1)
    next_producer_id: int = stored(INT64, tag=1, default=-1)
    client_transaction_version: int = stored(INT16, tag=2, default=0)


TRANSACTION_KEY: Final = Schema(TransactionKey, "a key of __transaction_state", range(1), 1)
TRANSACTION_STATE: Final = Schema(TransactionState, "a value of __transaction_state", range(2), 1)


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One record of ``__transaction_state``; ``value`` and ``value_version`` are None for a tombstone."""

    key: TransactionKey
    value: TransactionState | None
    value_version: int | None


def parse_transaction_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Return the record with this key and value; None if the key's version is unknown, because readers skip it.

    Raises:
        InvalidRecordError: the key is null, the value's version is unknown, or key or value do not match their schema.
    """
    if key is None:
        raise InvalidRecordError("a record of __transaction_state has no key")
    if SchemaReader(key, TRANSACTION_KEY.name).version() not in TRANSACTION_KEY.versions:
        return None
    parsed, _ = TRANSACTION_KEY.parse(key)
    state, version = (None, None) if value is None else TRANSACTION_STATE.parse(value)
    return TransactionRecord(parsed, state, version)


def transaction_key(transactional_id: str) -> bytes:
    """Return the encoded key of a record."""
    return TRANSACTION_KEY.encode(TransactionKey(transactional_id=transactional_id), 0)


def transaction_value(state: TransactionState, version: int) -> bytes:
    """Return the encoded value of a record, in version 0 or 1 of its schema.

    Version 0 leaves out ``previous_producer_id``, ``next_producer_id`` and ``client_transaction_version``.
    """
    return TRANSACTION_STATE.encode(state, version)
