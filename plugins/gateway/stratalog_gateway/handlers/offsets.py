"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Source: apache/kafka KafkaApis.handleListOffsetRequest, ListOffsetsRequest.
"""

from __future__ import annotations

from typing import Any, Final

from stratalog import Log
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import ISOLATIONS, Outcome, Request, answer_partitions, require
from stratalog_gateway.security.resources import Operation, ResourceType
from stratalog_gateway.wire.primitives import MalformedRequestError

_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_FIRST_VERSIONS: Final = {_LATEST: 1, _EARLIEST: 1, _LARGEST_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_NONE: Final = (-1, -1)  # offset, timestamp


def list_offsets(request: Request) -> Any:
    """Return the response with one offset for each partition: for a timestamp, or for a special value such as LATEST.

    Raises:
        MalformedRequestError: the isolation level is unknown.
    """
    level = int(request.field("isolation_level", 0))
    if level not in ISOLATIONS:
        raise MalformedRequestError(f"unknown isolation level {level}")
    return request.make(
        topics=answer_partitions(
            request,
            "ListOffsetsTopicResponse",
            lambda topic, partition: _list(request, topic.name, partition, ISOLATIONS[level]),
        )
    )


def _list(request: Request, topic: str, partition: Any, isolation: str) -> Any:
    offset, stamp, epoch = -1, -1, -1
    current = getattr(partition, "current_leader_epoch", -1)
    with Outcome() as outcome:
        require(request.client, Operation.DESCRIBE, ResourceType.TOPIC, topic)
        _check_timestamp(partition.timestamp, request.header.version)
        log = request.node.log(topic, partition.partition_index)
        if current >= 0:
            log.end_offset_for_epoch(current, current)  # checks the epoch
        offset, stamp = _offset_at(log, partition.timestamp, isolation)
        epoch = log.leader_epoch if partition.timestamp == _LATEST else log.leader_epoch_at(offset)
    return outcome.part(
        request.make, "ListOffsetsPartitionResponse", partition_index=partition.partition_index,
        timestamp=stamp, offset=offset, leader_epoch=epoch,
    )  # fmt: skip


def offset_for_leader_epoch(request: Request) -> Any:
    """Return the response with the exclusive end offset of a leader epoch in each partition."""
    make, topics = request.make, []
    for topic in request.body.topics:
        partitions = []
        for partition in topic.partitions:
            epoch, end, current = -1, -1, partition.current_leader_epoch
            with Outcome() as outcome:
                require(request.client, Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
                log = request.node.log(topic.topic, partition.partition)
                epoch, end = log.end_offset_for_epoch(partition.leader_epoch, current if current >= 0 else None)
            fields = {"partition": partition.partition, "leader_epoch": epoch, "end_offset": end}
            partitions.append(outcome.part(make, "EpochEndOffset", **fields))
        topics.append(make.part("OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(partitions)))
    return make(topics=tuple(topics))


def delete_records(request: Request) -> Any:
    """Increase the log start offset of each partition, which deletes the records below this offset.

    Return the response.
    """

    def delete(topic: Any, partition: Any) -> Any:
        number, low = partition.partition_index, -1
        with Outcome() as outcome:
            require(request.client, Operation.DELETE, ResourceType.TOPIC, topic.name)
            low = request.node.log(topic.name, number).delete_records(partition.offset)
        return outcome.part(request.make, "DeleteRecordsPartitionResult", partition_index=number, low_watermark=low)

    return request.make(topics=answer_partitions(request, "DeleteRecordsTopicResult", delete))


def _check_timestamp(timestamp_ms: int, version: int) -> None:
    """Raise RefusedError if this version of the request does not have the special value ``timestamp_ms``.

    Source: apache/kafka ReplicaManager.isListOffsetsTimestampUnsupported.
    """
    if timestamp_ms < 0 and version < _FIRST_VERSIONS.get(timestamp_ms, version + 1):
        raise RefusedError(Code.UNSUPPORTED_VERSION, f"the timestamp {timestamp_ms} is unknown in version {version}")


def _offset_at(log: Log, timestamp_ms: int, isolation: str) -> tuple[int, int]:
    """Return (offset, timestamp in ms) for a timestamp or a special value. A missing offset or timestamp is -1."""
    bounds = log.offsets()
    if timestamp_ms == _LATEST:
        return (bounds.last_stable if isolation == "read_committed" else bounds.high_watermark), -1
    if timestamp_ms == _EARLIEST:
        return bounds.log_start, -1
    if timestamp_ms == _EARLIEST_LOCAL:
        return bounds.local_log_start, -1
    if timestamp_ms == _LATEST_TIERED:
        return max((segment.end_offset for segment in log.segments() if segment.is_remote), default=0) - 1, -1
    position = log.largest_timestamp(isolation) if timestamp_ms == _LARGEST_TIMESTAMP else None
    if timestamp_ms >= 0:
        position = log.first_since(timestamp_ms, isolation)
    return _NONE if position is None else (position.offset, position.timestamp_ms)
