"""Handler of Produce requests.

Source: apache/kafka KafkaApis.handleProduceRequest.
"""

from __future__ import annotations

from typing import Final

from stratalog import AppendResult, Durability, Log, ProducerId
from stratalog.errors import InvalidRecordError, StorageError
from stratalog.spi import TRANSACTIONAL_BIT
from stratalog_gateway.error_codes import Code, client_text
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.handlers.transactions import write_code
from stratalog_gateway.node import INTERNAL_TOPICS, Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.quotas import PRODUCED
from stratalog_gateway.security.resources import Operation, ResourceType
from stratalog_gateway.wire.messages import Header
from stratalog_gateway.wire.primitives import I16, I32, I64, MalformedRequestError
from stratalog_gateway.wire.produce_codec import (
    ProducedRecords,
    ProduceRequest,
    ProduceResult,
    decode_produce,
    encode_produce,
)

_LENGTH_AT: Final = 8  # positions of fields in a record batch
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21
_PRODUCER_ID_AT: Final = 43
_PRODUCER_EPOCH_AT: Final = 51
_HEADER_BYTES: Final = 61
_FIRST_ABORTABLE: Final = 11
_FIRST_ADDING: Final = 12  # first version in which Produce adds the partition to the transaction (KIP-890)
_ALL: Final = -1  # acks=all
_ACKS: Final = {_ALL: None, 0: "written", 1: "written"}  # durability; None is the engine's setting


class ProduceHandler:
    """Handler of Produce requests, which append records."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_durable = True  # acks=all waits for a sync; known after the first append, equal for all logs

    def __call__(self, header: Header, data: memoryview, client: Client) -> Response:
        """Append the records, and return the response; a response without pieces for acks=0.

        Raises:
            MalformedRequestError: the request does not fit its schema, or an append with acks=0 failed. There is no
                response for acks=0, so the client notices the failure when the connection is closed.
        """
        request = decode_produce(header, data)
        results = [
            (topic, self._append_all(header.version, request, topic, partitions, client))
            for topic, partitions in request.topics
        ]
        throttle_ms = self._node.quotas.record(PRODUCED, client, header.client_id, len(data))
        is_short = not throttle_ms and (request.acks != _ALL or not self._is_durable)
        if request.acks != 0:
            frame = encode_produce(header.version, results, header.correlation_id, throttle_ms)
            return Response([frame], throttle_ms=throttle_ms, is_short=is_short)
        first_error = next((result for _, partitions in results for result in partitions if result.error), None)
        if first_error is not None:
            raise MalformedRequestError(f"append with acks=0 failed: error={first_error.error} {first_error.message}")
        return Response([], throttle_ms=throttle_ms, is_short=is_short)

    def _append_all(
        self,
        version: int,
        request: ProduceRequest,
        name_or_id: str | bytes,
        partitions: list[ProducedRecords],
        client: Client,
    ) -> list[ProduceResult]:
        """Append the records of the topic with the name or id ``name_or_id``. Return one result per partition."""
        topic_id = name_or_id if isinstance(name_or_id, bytes) else None
        topic = name_or_id if isinstance(name_or_id, str) else self._node.topic_of(name_or_id)
        if topic is None:
            reason = "no topic has this id"
            return [ProduceResult(partition, Code.UNKNOWN_TOPIC_ID, message=reason) for partition, _ in partitions]
        refusal = client.refusal(Operation.WRITE, ResourceType.TOPIC, topic)
        if refusal:
            return [ProduceResult(partition, refusal) for partition, _ in partitions]
        may_end = not request.transactional_id or client.allows(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
        )
        return [self._append(version, request, topic, topic_id, records, may_end=may_end) for records in partitions]

    def _append(
        self,
        version: int,
        request: ProduceRequest,
        topic: str,
        topic_id: bytes | None,
        produced: ProducedRecords,
        *,
        may_end: bool,
    ) -> ProduceResult:
        """Append the records of one partition, and return a result. The result may have an error code.

        ``topic_id`` is the id of the topic if the client has sent it. ``may_end`` is True if the client may use the
        transactional id of the request.
        """
        partition, records = produced
        producers, batches = _find_producers(records)
        if producers and not may_end:
            return ProduceResult(partition, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        refusal = _refusal(request, topic, records, len(producers), batches)
        if refusal is not None:
            return ProduceResult(partition, refusal[0], message=refusal[1])
        try:
            log = self._node.log(topic, partition, topic_id)
            self._is_durable = log.durability == Durability.DURABLE
            if producers:
                result = self._append_in_transaction(version, request, log, records, producers[0])
            else:
                result = log.append_as_leader(records, _ACKS[request.acks])
        except StorageError as error:
            code = error.kafka_code
            if producers:
                busy = Code.CONCURRENT_TRANSACTIONS if version >= _FIRST_ADDING else Code.NOT_ENOUGH_REPLICAS
                code = write_code(error, is_abortable=version >= _FIRST_ABORTABLE, busy=busy)
            record_errors = error.record_errors if isinstance(error, InvalidRecordError) else ()
            return ProduceResult(partition, code, message=client_text(error), record_errors=record_errors)
        self._node.wake_fetches(topic, partition)
        stamp = result.append_time_ms if log.config.message_timestamp_type == "LogAppendTime" else -1
        return ProduceResult(partition, Code.NONE, result.base_offset, stamp, log.offsets().log_start)

    def _append_in_transaction(
        self, version: int, request: ProduceRequest, log: Log, records: memoryview, producer: ProducerId
    ) -> AppendResult:
        """Append a transactional record batch. The transaction cannot end during the append.

        If the record batch were appended after the end marker, it would open another transaction. Source: apache/kafka
        ReplicaManager.handleProduceAppend, KIP-890.
        """
        assert request.transactional_id is not None
        transaction_version = 2 if version >= _FIRST_ADDING else 0
        writing = self._node.engine.transactions.writing(
            request.transactional_id, producer, log.name, version=transaction_version
        )
        with writing:
            return log.append_as_leader(records, _ACKS[request.acks])


def _refusal(
    request: ProduceRequest, topic: str, records: memoryview, transactional: int, batches: int
) -> tuple[int, str] | None:
    """Return error code and message if the records must not be appended; otherwise None."""
    if request.acks not in _ACKS:
        return Code.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
    if topic in INTERNAL_TOPICS:
        return Code.INVALID_TOPIC, f"clients do not write to {topic}"
    if not records:
        return Code.INVALID_RECORD, "a partition has no batch"
    if transactional and not request.transactional_id:
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs a transactional id"
    if transactional and batches != 1:
        return Code.INVALID_RECORD, "a transactional batch must be the only one of its partition"
    return None


def _find_producers(records: memoryview) -> tuple[list[ProducerId], int]:
    """Return the producer of each transactional record batch, and the number of all batches.

    Other fields are not checked.
    """
    producers: list[ProducerId] = []
    position = batches = 0
    while position + _HEADER_BYTES <= len(records):
        batches += 1
        if (
            records[position + _MAGIC_AT] >= 2
            and I16.unpack_from(records, position + _ATTRIBUTES_AT)[0] & TRANSACTIONAL_BIT
        ):
            producer_id: int = I64.unpack_from(records, position + _PRODUCER_ID_AT)[0]
            epoch: int = I16.unpack_from(records, position + _PRODUCER_EPOCH_AT)[0]
            producers.append(ProducerId(producer_id, epoch))
        size: int = I32.unpack_from(records, position + _LENGTH_AT)[0]
        if size <= 0:
            break
        position += _LENGTH_AT + I32.size + size
    return producers, batches
