"""Serializers and deserializers: functions of the caller that convert keys and values to bytes, or from bytes.

Source: apache/kafka Serializer, Deserializer, RecordDeserializationException.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from stratalog.errors import SerializationError
from stratalog.model.batches import TimestampType
from stratalog.model.records import Headers, Record

Serializer: TypeAlias = Callable[[Any], bytes | None]
"""Function that returns the bytes of a key or of a value. It is not called for None, which is stored as null."""
Deserializer: TypeAlias = Callable[[bytes], Any]
"""Function that returns the object of a stored key or value. It is not called for null, which becomes None."""


class DeserializedRecord(NamedTuple):
    """One record of a consumer with deserializers, with the fields of ``Record``.

    Attributes:
        offset: offset of the record.
        timestamp_ms: timestamp of the record; -1 for no timestamp.
        timestamp_type: ``TimestampType.CREATE_TIME``, ``LOG_APPEND_TIME``, or ``NONE`` if the format has no timestamps.
        key: result of the key's deserializer, or the bytes if there is no deserializer. None if the record has no key.
        value: result of the value's deserializer, or the bytes if there is no deserializer. None for a tombstone.
        headers: pairs of name and value, in order.
        leader_epoch: leader epoch of the batch; -1 if the format has none.
        partition: number of the record's partition.
    """

    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: Headers
    leader_epoch: int
    partition: int


def serialize(function: Serializer | None, part: str, content: Any, topic: str) -> bytes | None:
    """Return the bytes of a key or a value: the result of the function, or ``content`` itself without a function.

    If ``content`` is None, return None without a call of the function. ``part`` ("key" or "value") and ``topic`` are
    for error texts.

    Raises:
        SerializationError: the function raised an error, or its result is neither bytes nor None.
    """
    if function is None or content is None:
        data: bytes | None = content  # a record refuses anything but bytes
        return data
    try:
        data = function(content)
    except Exception as error:
        raise SerializationError(f"the {part} cannot be serialized: {_describe(error)}", topic) from error
    if data is not None and not isinstance(data, bytes):
        raise SerializationError(f"{part}_serializer returned {type(data).__name__} instead of bytes", topic)
    return data


class Deserializers(NamedTuple):
    """The deserializers of one consumer. None means that the key or the value stays bytes."""

    key: Deserializer | None
    value: Deserializer | None

    def record(self, topic: str, record: Record) -> DeserializedRecord:
        """Return the record with its key and its value deserialized.

        Raises:
            SerializationError: a deserializer raised an error. The error contains the partition and the offset.
        """
        key, value = self._part("key", topic, record), self._part("value", topic, record)
        return DeserializedRecord(
            record.offset,
            record.timestamp_ms,
            record.timestamp_type,
            key,
            value,
            record.headers,
            record.leader_epoch,
            record.partition,
        )

    def _part(self, part: str, topic: str, record: Record) -> Any:
        content: bytes | None = getattr(record, part)
        function: Deserializer | None = getattr(self, part)
        if content is None or function is None:
            return content
        try:
            return function(content)
        except Exception as error:
            reason = f"the {part} cannot be deserialized: {_describe(error)}"
            raise SerializationError(reason, topic, record.partition, record.offset).advised(
                "correct the deserializer, or continue behind the record with seek"
            ) from error


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
